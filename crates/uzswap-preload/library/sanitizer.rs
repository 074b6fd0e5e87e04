//! Options for the address sanitizer, if the program is linked to it.

use core::ffi::{CStr, c_char};

/// The address sanitizer refuses to start where another library comes first. Ours has to come
/// before the C library, and the sanitizer does as well where it comes second: of its functions,
/// this library has the ones that start programs, which call the sanitizer's. The program's
/// `ASAN_OPTIONS` count after these.
static OPTIONS: &CStr = c"verify_asan_link_order=0";

/// Options of the address sanitizer, unless the program itself defines this function.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    OPTIONS.as_ptr()
}
