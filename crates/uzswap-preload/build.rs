//! Compiles the preload library, which the binary carries.
//!
//! The library has no dependencies, so the compiler alone is enough.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=library");
    println!("cargo::rerun-if-changed=src/protocol.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let library = out.join("libuzswap_preload.so");
    let is_known = env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64")
        && env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux");
    if !is_known {
        // `run` says that it is not there.
        std::fs::write(&library, []).expect("OUT_DIR can be written");
        return;
    }
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets it"));
    rustc
        .args(["--crate-name", "uzswap_preload", "--crate-type", "cdylib", "--edition", "2024"])
        .args(["-C", "panic=abort", "-C", "opt-level=2", "-C", "strip=symbols"])
        // Nothing here unwinds, but `core` was compiled to.
        .args(["-C", "link-arg=-Wl,--defsym=rust_eh_personality=0"])
        // Of no C library, so that programs of glibc and of musl can load it, whichever of the two
        // this build is for. One unit, as its assembly says which of its symbols are weak.
        .args(["-C", "link-arg=-nostdlib", "-C", "target-feature=-crt-static"])
        .args(["-C", "codegen-units=1"])
        .arg("--target")
        .arg(env::var_os("TARGET").expect("cargo sets it"))
        .arg("-o")
        .arg(&library)
        .arg("library/lib.rs");
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("linker=");
        option.push(linker);
        rustc.arg("-C").arg(option);
    }
    let status = rustc.status().expect("the compiler that runs this build can be run");
    assert!(status.success(), "library/lib.rs was not compiled: {status}");
}
