//! A descriptor in an epoll set, which leaves the set before it is closed.
//!
//! The kernel removes it from the set with the last descriptor of its file alone. Where another
//! process has one too, epoll would report that file for ever.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

#[derive(Debug)]
pub(crate) struct Polled<T: AsFd> {
    epolls: Arc<[OwnedFd]>,
    it: T,
}

impl<T: AsFd> Polled<T> {
    /// Adds it to the first of these sets.
    ///
    /// # Errors
    ///
    /// The kernel's, where it has no memory.
    pub(crate) fn add(
        epolls: &Arc<[OwnedFd]>,
        it: T,
        token: epoll::EventData,
    ) -> rustix::io::Result<Polled<T>> {
        epoll::add(&epolls[0], &it, token, epoll::EventFlags::IN)?;
        Ok(Polled { epolls: Arc::clone(epolls), it })
    }

    /// From now on epoll reports its end alone.
    ///
    /// # Errors
    ///
    /// The kernel's, where it has no memory.
    pub(crate) fn report_end(&self, token: epoll::EventData) -> rustix::io::Result<()> {
        epoll::modify(&self.epolls[0], &self.it, token, epoll::EventFlags::empty())
    }

    /// Takes it out of the set, before it is dropped.
    pub(crate) fn leave(&self) {
        let _ = epoll::delete(&self.epolls[0], &self.it); // it may have left before
    }
}

impl<T: AsFd> AsFd for Polled<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.it.as_fd()
    }
}

impl<T: AsFd> Drop for Polled<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::mem::MaybeUninit;
    use std::os::unix::net::UnixStream;

    use rustix::event::Timespec;

    use super::*;

    #[test]
    fn what_another_has_too_is_not_reported_after_its_end() {
        let epolls: Arc<[OwnedFd]> = [epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()].into();
        let (here, mut there) = UnixStream::pair().unwrap();
        let _of_another = here.try_clone().unwrap();
        let polled = Polled::add(&epolls, here, epoll::EventData::new_u64(1)).unwrap();
        there.write_all(b"x").unwrap();
        let reported = || {
            let mut room = [MaybeUninit::uninit(); 4];
            epoll::wait(&epolls[0], &mut room, Some(&Timespec::default())).unwrap().0.len()
        };
        assert_eq!(reported(), 1);
        drop(polled);
        assert_eq!(reported(), 0);
    }
}
