//! Large zeroed tables, for which the kernel allocates memory on the first write.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::TryReserveError;
use std::ptr;

/// A table of `len` zeros. Of a large one, what is not written takes address space alone.
///
/// # Errors
///
/// Where the heap has no room.
pub fn zeroed(len: usize) -> Result<Box<[u16]>, TryReserveError> {
    let table = match Layout::array::<u16>(len) {
        // SAFETY: the layout is not of size 0.
        Ok(layout) if layout.size() > 0 => unsafe { alloc_zeroed(layout) },
        _ => ptr::null_mut(),
    };
    if table.is_null() {
        // Of no size, or refused: what is asked for here says why.
        let mut table = Vec::new();
        table.try_reserve_exact(len)?;
        table.resize(len, 0);
        return Ok(table.into_boxed_slice());
    }
    let table = ptr::slice_from_raw_parts_mut(table.cast::<u16>(), len);
    // SAFETY: the allocator has just given it to us alone, with the layout of so many `u16`, all of
    // which are zero.
    Ok(unsafe { Box::from_raw(table) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::anonymous_bytes;

    #[test]
    fn a_table_takes_what_is_written_of_it() {
        assert!(zeroed(0).unwrap().is_empty());
        assert_eq!(*zeroed(3).unwrap(), [0; 3]);
        assert!(zeroed(usize::MAX).is_err());
        assert!(zeroed(usize::MAX / 4).is_err());
        let before = anonymous_bytes().unwrap();
        let mut table = zeroed(512 << 20).unwrap();
        table[300 << 20] = 7;
        assert!(table[299 << 20..].iter().take(2 << 20).sum::<u16>() == 7);
        // Other tests run meanwhile.
        assert!(anonymous_bytes().unwrap() < before + (512 << 20));
    }
}
