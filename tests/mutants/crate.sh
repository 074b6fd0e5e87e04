#!/bin/sh
# Makes a crate of one part of the library, of the parts below it, and of its tests. The crate
# builds in seconds, so that mutants can be tried by the hundred. docs/experiments/2026-11-26-mutation.md says how.
#
#   tests/mutants/crate.sh index|zpool FOLDER
set -eu
part=$1 out=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
case $part in
    index) sys="rb_node" tests="index_model" ;;
    zpool) sys="files pages window" tests="zpool_model zpool_exhaustive zsmalloc_classes zsmalloc_mapping" ;;
    *) echo "no part $part: index or zpool" >&2; exit 2 ;;
esac
library=$root/crates/uzswap
mkdir -p "$out/src" "$out/tests" "$out/.cargo"
rm -rf "$out/src/$part"
cp -r "$library/src/$part" "$out/src/$part"
for module in audit budget budgeted_vec named_enum options page random; do
    cp "$library/src/$module.rs" "$out/src/"
done
{
    echo "$(sed -n '/^#!\[allow(unsafe_code/p' "$root/crates/uzswap-sys/src/lib.rs")"
    # The modules of that package are in this crate.
    echo "extern crate self as uzswap_sys;"
    for module in $sys; do
        echo "pub mod $module;"
        cp "$root/crates/uzswap-sys/src/$module.rs" "$out/src/"
    done
    for module in audit budget budgeted_vec named_enum options page random "$part"; do
        echo "pub mod $module;"
    done
    grep -E '^pub use (audit|named_enum|options)::' "$library/src/lib.rs"
} > "$out/src/lib.rs"
for test in $tests; do
    sed "s/^use crate::common;/mod common;/" "$library/tests/store/$test.rs" > "$out/tests/$test.rs"
done
cp -r "$library/tests/store/common" "$out/tests/"
cat > "$out/Cargo.toml" <<END
[package]
name = "uzswap"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
$(grep -E '^(intrusive-collections|libc|thiserror|tempfile) ' "$root/Cargo.toml")
rustix = { version = "1.1", default-features = false, features = ["std", "fs"] }

[profile.dev]
opt-level = 1

[workspace]
END
cp "$root/Cargo.lock" "$out/"
cp "$root/tests/mutants/mutants.toml" "$out/.cargo/mutants.toml"
