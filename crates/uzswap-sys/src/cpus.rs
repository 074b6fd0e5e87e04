//! The processors that a thread may run on.

use std::io;
use std::mem::MaybeUninit;

/// The processors that this thread may use, by number.
///
/// # Errors
///
/// The kernel's error: `EINVAL` on a machine of more than 1024 processors.
pub fn allowed() -> io::Result<Vec<usize>> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the pointer is to a set of our own of the size given, which the call fills.
    let result =
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain bits, all zero before the call filled them.
    let set = unsafe { set.assume_init() };
    // SAFETY: reads a bit of the set, within its size.
    let is_set = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_set).collect())
}

/// Keeps this thread on one processor from now on.
///
/// # Errors
///
/// The kernel's error: `EINVAL` where the processor is not there or not allowed.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: plain bits, for which all zero is the empty set.
    let mut set = unsafe { MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init() };
    // SAFETY: sets a bit of the set, within its size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer is to a set of our own of the size given, which the call reads.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_its_processor_alone() {
        std::thread::spawn(|| {
            let cpus = allowed().unwrap();
            let last = *cpus.last().unwrap();
            pin_to(last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
            assert!(pin_to(5000).is_err());
        })
        .join()
        .unwrap();
    }
}
