#!/bin/sh
# Makes a crate of one part of the library, of the parts below it, and of its tests. The crate
# builds in seconds, so that mutants can be tried by the hundred. docs/mutation.md says how.
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
mkdir -p "$out/src/sys" "$out/src/lab" "$out/tests" "$out/.cargo"
cp "$root/src/budget.rs" "$root/src/names.rs" "$root/src/page.rs" "$root/src/table.rs" "$out/src/"
rm -rf "$out/src/$part"
cp -r "$root/src/$part" "$out/src/$part"
cp "$root/src/lab/random.rs" "$out/src/lab/mod.rs"
{
    sed -n '/^#!\[allow(unsafe_code/p' "$root/src/sys/mod.rs"
    for module in $sys; do
        echo "pub mod $module;"
        cp "$root/src/sys/$module.rs" "$out/src/sys/"
    done
} > "$out/src/sys/mod.rs"
for module in budget lab names page sys table "$part"; do
    echo "pub mod $module;"
done > "$out/src/lib.rs"
for test in $tests; do
    cp "$root/tests/$test.rs" "$out/tests/"
done
[ ! -d "$root/tests/common" ] || cp -r "$root/tests/common" "$out/tests/"
mkdir -p "$out/tests/data"
cp -r "$root/tests/golden" "$out/tests/" 2>/dev/null || true
cat > "$out/Cargo.toml" <<END
[package]
name = "uzswap"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
$(grep -E '^(intrusive-collections|rustix|libc|procfs|thiserror|tempfile) ' "$root/Cargo.toml")

[profile.dev]
opt-level = 1

[workspace]
END
cp "$root/Cargo.lock" "$out/"
cp "$root/tests/mutants/mutants.toml" "$out/.cargo/mutants.toml"
