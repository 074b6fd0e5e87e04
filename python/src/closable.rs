//! A thing of Rust that threads of Python share until one of them closes it.

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// How long a thread that closes waits before it looks for Ctrl-C again.
const SIGNALS: Duration = Duration::from_millis(50);

/// A thing and the calls that use it.
pub(crate) struct Closable<T> {
    state: Mutex<State<T>>,
    /// The last call has ended.
    idle: Condvar,
}

struct State<T> {
    /// None once it is closed.
    open: Option<Arc<T>>,
    /// The threads in calls; a thread is there twice if its call runs code of Python that calls.
    callers: Vec<ThreadId>,
}

/// The open thing, for the time of one call.
pub(crate) struct InCall<'a, T> {
    closable: &'a Closable<T>,
    /// None once the call has ended.
    thing: Option<Arc<T>>,
}

impl<T> Closable<T> {
    pub(crate) fn new(open: T) -> Closable<T> {
        let state = State { open: Some(Arc::new(open)), callers: Vec::new() };
        Closable { state: Mutex::new(state), idle: Condvar::new() }
    }

    /// No thread waits for the GIL while it has this lock.
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open thing, for the time of one call.
    ///
    /// # Errors
    ///
    /// Another call has closed it (ValueError, as of a file).
    pub(crate) fn get(&self) -> PyResult<InCall<'_, T>> {
        let mut state = self.state();
        let thing = state.open.clone();
        let thing = thing.ok_or_else(|| PyValueError::new_err("the store is closed"))?;
        state.callers.push(thread::current().id());
        Ok(InCall { closable: self, thing: Some(thing) })
    }

    /// Closes it to new calls at once, waits for those that have it, and drops it.
    ///
    /// # Errors
    ///
    /// This thread itself is in a call, which would wait for its own end (RuntimeError); nothing
    /// is closed then. An exception of a signal ends the wait; the last call drops it then.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()>
    where
        T: Send + Sync,
    {
        let mut state = self.state();
        if state.callers.contains(&thread::current().id()) {
            return Err(PyRuntimeError::new_err(
                "this thread closes the store in the middle of one of its own calls, in a signal \
                 handler or a buffer's code; close it after that call",
            ));
        }
        let open = state.open.take();
        drop(state);
        while !py.detach(|| self.is_idle_after(SIGNALS)) {
            py.check_signals()?;
        }
        py.detach(|| drop(open));
        Ok(())
    }

    /// Waits for the last call; whether it has ended.
    fn is_idle_after(&self, wait: Duration) -> bool {
        let in_calls = |state: &mut State<T>| !state.callers.is_empty();
        let waited = self.idle.wait_timeout_while(self.state(), wait, in_calls);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl<T> Deref for InCall<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.thing.as_ref().expect("the call has not ended")
    }
}

impl<T> Drop for InCall<'_, T> {
    fn drop(&mut self) {
        drop(self.thing.take()); // before a thread that closes hears of it
        let mut state = self.closable.state();
        let this = thread::current().id();
        let at = state.callers.iter().position(|caller| *caller == this);
        at.map(|at| state.callers.swap_remove(at));
        if state.callers.is_empty() {
            self.closable.idle.notify_all();
        }
    }
}
