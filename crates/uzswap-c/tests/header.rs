//! Goal: `include/uzswap.h` says what the library has.
//! Method: cbindgen writes the header again. Symbols of the shared library are compared with it.
//! UZSWAP_BLESS=1 writes the header that is expected.

use std::fs;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The modules, in the order of the header.
const MODULES: [&str; 9] =
    ["status", "last_error", "call", "boundary", "options", "store", "values", "tenants", "stats"];

fn header() -> String {
    let config = Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let source = |module: &str| folder().join("src").join(module).with_extension("rs");
    let builder = Builder::new().with_config(config);
    let builder = MODULES.iter().fold(builder, |builder, it| builder.with_src(source(it)));
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn constants_are_those_of_the_store() {
    let header = header();
    for (name, value) in [
        ("UZ_PAGE_SIZE", uzswap::page::PAGE_SIZE as u64),
        ("UZ_VALUE_BYTES_MAX", uzswap::values::VALUE_BYTES_MAX as u64),
        ("UZ_ROOT", uzswap::zswap::TenantId::ROOT.to_bits()),
    ] {
        assert!(header.contains(&format!("#define {name} {value}\n")), "{name} is not {value}");
    }
}

#[test]
fn the_header_is_that_of_the_sources() {
    let (path, expected): (PathBuf, _) = (folder().join("include/uzswap.h"), header());
    if std::env::var_os("UZSWAP_BLESS").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert!(
        found == expected,
        "include/uzswap.h is not what cbindgen writes; UZSWAP_BLESS=1 cargo test -p uzswap-c \
         --test header writes it"
    );
}
