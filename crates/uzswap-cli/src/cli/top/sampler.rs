//! Takes samples in a thread: a run that does not answer delays neither a key nor Ctrl-C.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::cli::Failure;
use uzswap_pager::{NoAnswer, Survey, find_run, survey};

/// A sample: all runs, or the only one that was asked for.
pub(super) type Sample = Result<Survey, NoAnswer>;

/// Takes one sample at a time.
#[derive(Debug)]
pub(super) struct Sampler {
    only: Option<u32>,
    pending: Option<Receiver<Sample>>,
}

impl Sampler {
    /// Of all runs, or of only one.
    pub(super) fn new(only: Option<u32>) -> Sampler {
        Sampler { only, pending: None }
    }

    /// Whether a sample has begun and was not taken.
    pub(super) fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// Begins a sample.
    ///
    /// # Errors
    ///
    /// The machine starts no thread.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        let (sender, receiver) = channel();
        let only = self.only;
        let sample = move || {
            let sample = match only {
                Some(pid) => {
                    find_run(pid).map(|run| Survey { runs: vec![run], ..Survey::default() })
                }
                None => Ok(survey()),
            };
            let _ = sender.send(sample); // `top` may have ended
        };
        let thread = thread::Builder::new().name("uzswap-sample".to_owned()).spawn(sample);
        thread.context("cannot start a thread that queries the runs").map_err(Failure::Machine)?;
        self.pending = Some(receiver);
        Ok(())
    }

    /// The sample, if it is there after `wait` at most.
    ///
    /// # Panics
    ///
    /// If the thread did.
    pub(super) fn take(&mut self, wait: Duration) -> Option<Sample> {
        match self.pending.as_ref()?.recv_timeout(wait) {
            Ok(sample) => {
                self.pending = None;
                Some(sample)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the thread of the sample has panicked"),
        }
    }
}
