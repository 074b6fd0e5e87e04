//! liblz4's block functions with a working state that the caller keeps.

use std::ffi::{c_char, c_int, c_void};

// Exported by liblz4 (which `lz4_sys` builds and links) but not declared by that crate.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_bytes: c_int,
        destination_bytes: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// The compressor's hash table (16 KiB), reused from call to call.
#[derive(Debug)]
pub struct Lz4State {
    // u64: the state must be 8-byte aligned.
    words: Vec<u64>,
}

impl Lz4State {
    /// A state; its contents need no preparation, each call resets what it uses.
    pub fn new() -> Lz4State {
        // SAFETY: a function of no arguments that returns a constant.
        let bytes = unsafe { LZ4_sizeofState() };
        let bytes = usize::try_from(bytes).expect("a size is not negative");
        Lz4State { words: vec![0; bytes.div_ceil(size_of::<u64>())] }
    }

    /// Compresses `source` into `destination`; the compressed length in bytes, or `None` where it
    /// does not fit. `acceleration` 1 is the default; more is faster and less dense.
    ///
    /// # Panics
    ///
    /// If a slice is longer than `i32::MAX`.
    pub fn compress(
        &mut self,
        source: &[u8],
        destination: &mut [u8],
        acceleration: i32,
    ) -> Option<usize> {
        let source_bytes = c_int::try_from(source.len()).expect("at most 2 GiB");
        let destination_bytes = c_int::try_from(destination.len()).expect("at most 2 GiB");
        // SAFETY: the state is as large as liblz4 asks for and 8-byte aligned; both slices are
        // valid for the lengths given beside them; liblz4 writes at most `destination_bytes`.
        let written = unsafe {
            LZ4_compress_fast_extState(
                self.words.as_mut_ptr().cast(),
                source.as_ptr().cast(),
                destination.as_mut_ptr().cast(),
                source_bytes,
                destination_bytes,
                acceleration,
            )
        };
        usize::try_from(written).ok().filter(|&bytes| bytes > 0)
    }
}

impl Default for Lz4State {
    fn default() -> Self {
        Lz4State::new()
    }
}

/// Decompresses one block into `destination`; the decompressed length in bytes, or `None` where
/// `source` is not a valid block or holds more than fits. Never reads or writes outside the slices.
pub fn decompress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    let source_bytes = c_int::try_from(source.len()).ok()?;
    let destination_bytes = c_int::try_from(destination.len()).ok()?;
    // SAFETY: both slices are valid for the lengths given; the `_safe` function stays inside them
    // for any input.
    let written = unsafe {
        lz4_sys::LZ4_decompress_safe(
            source.as_ptr().cast(),
            destination.as_mut_ptr().cast(),
            source_bytes,
            destination_bytes,
        )
    };
    usize::try_from(written).ok()
}
