//! Gives the shared library its soname.

/// The number in the soname: another one with each version that programs must be compiled for
/// again.
const ABI: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuzswap.so.{ABI}");
}
