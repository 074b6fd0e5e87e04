//! See `tests/fuzz_targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uzswap_fuzz::check("lzo_page", data));
