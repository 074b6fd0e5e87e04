#!/bin/sh
# Packs each package as `cargo publish` does, unpacks them elsewhere, and builds and installs what
# they hold, each with the others as they were packed. Then runs the installed `uzswap`.
#
#   tests/package/run.sh
#
# Where there are dpkg and cargo-deb, the same with the package for Debian.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT TERM
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
# This tries the contents of packages, not their speed.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0
packages="uzswap-sys uzswap uzswap-preload uzswap-pager uzswap-kernel-swap uzswap-fleet uzswap-cli"

cd "$root"
cargo package -q --allow-dirty --no-verify $(printf -- '-p %s ' $packages)
version=$(cargo pkgid -p uzswap | sed 's/.*[#@]//')
mkdir -p "$out/.cargo"
echo "[patch.crates-io]" > "$out/.cargo/config.toml"
for package in $packages; do
    tar xzf "$CARGO_TARGET_DIR/package/$package-$version.crate" -C "$out"
    [ -s "$out/$package-$version/README.md" ] || { echo "$package: no README.md" >&2; exit 1; }
    echo "$package = { path = \"$out/$package-$version\" }" >> "$out/.cargo/config.toml"
done

# How many crates a user of the library compiles, its own two included. `-e no-dev` has those that
# build them, too.
crates() {
    (cd "$out/uzswap-$version" &&
        cargo tree -q --prefix none -e no-dev "$@" | sed 's/ .*//' | sort -u | wc -l)
}
default=$(crates) least=$(crates --no-default-features)
echo "uzswap compiles $default crates with default features, $least with none"
[ "$default" -le 33 ] && [ "$least" -le 20 ] || { echo "more than 33 or 20" >&2; exit 1; }
(cd "$out/uzswap-$version" && cargo check -q --release --no-default-features)

# In the packages' folder, where cargo reads the patches.
(cd "$out" && cargo install -q --path "uzswap-cli-$version" --root "$out/installed")
tried() {
    "$1" --version
    "$1" compare --workload text --size 16M --runs 1 --json > "$out/compare.json"
    grep -q '"zsmalloc"' "$out/compare.json"
    if "$1" doctor > /dev/null 2>&1; then
        "$1" run --limit 64M --quiet -- sh -c 'exit 7' || [ $? = 7 ]
        echo "$1: compare and run work"
    else
        echo "$1: compare works; skipped: this machine does not allow run"
    fi
}
tried "$out/installed/bin/uzswap"

# The static binary.
musl=x86_64-unknown-linux-musl
if ! command -v musl-gcc > /dev/null; then
    echo "skipped: the static binary, as there is no musl-gcc here; apt install musl-tools"
elif ! [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ]; then
    echo "skipped: the static binary; rustup target add $musl"
else
    (cd "$root" && cargo build -q --release --target $musl -p uzswap-cli)
    if readelf -d "$CARGO_TARGET_DIR/$musl/release/uzswap" | grep -q NEEDED; then
        echo "the binary for musl is not static" >&2
        exit 1
    fi
    tried "$CARGO_TARGET_DIR/$musl/release/uzswap"
fi

# Compiles the example for C with the flags that pkg-config gives: of the shared library, and of the
# static one below the given root. Runs both.
tried_c() {
    if ! command -v cc > /dev/null || ! command -v pkg-config > /dev/null; then
        echo "skipped: the library for C, as there is no cc or pkg-config here"
        return
    fi
    example=$1/usr/share/doc/uzswap/examples/threads.c
    compile="cc -std=c11 -Wall -Wextra -Werror -pthread $example -o $out/example"
    pkg-config --exact-version="$version" uzswap
    [ -L "$1/usr/lib/libuzswap.so" ] || { echo "libuzswap.so is no link" >&2; exit 1; }
    $compile $(pkg-config --cflags --libs uzswap)
    readelf -d "$out/example" | grep -q 'NEEDED.*libuzswap\.so\.0'
    mkdir "$out/shared" "$out/static"
    "$out/example" "$out/shared"
    $compile $(pkg-config --cflags uzswap) "$1/usr/lib/libuzswap.a" \
        $(pkg-config --static --libs uzswap | sed 's/-luzswap//')
    "$out/example" "$out/static"
    rm -r "$out/shared" "$out/static"
}

if ! command -v dpkg-deb > /dev/null; then
    echo "skipped: the package for Debian, as there is no dpkg here"
elif ! cargo deb --version > /dev/null 2>&1; then
    echo "skipped: the package for Debian, as there is no cargo-deb here; cargo install cargo-deb"
else
    package=$(cd "$root" && packaging/deb.sh)
    dpkg-deb -x "$package" "$out/debian"
    tried "$out/debian/usr/bin/uzswap"
    for page in uzswap uzswap-run uzswap-compare; do
        [ -s "$out/debian/usr/share/man/man1/$page.1.gz" ] || { echo "no page $page" >&2; exit 1; }
    done
    (
        export PKG_CONFIG_SYSROOT_DIR="$out/debian" LD_LIBRARY_PATH="$out/debian/usr/lib"
        export PKG_CONFIG_PATH="$out/debian/usr/lib/pkgconfig"
        tried_c "$out/debian"
    )
    if [ "$(id -u)" = 0 ] && ! dpkg -s uzswap > /dev/null 2>&1; then
        dpkg -i "$package" > /dev/null
        removed() { dpkg -r uzswap > /dev/null; }
        trap 'removed; rm -rf "$out"' EXIT
        /usr/bin/uzswap --version
        tried_c ""
        removed
        trap 'rm -rf "$out"' EXIT
        for file in bin/uzswap lib/libuzswap.so.0 include/uzswap.h; do
            [ ! -e "/usr/$file" ] || { echo "dpkg -r left /usr/$file" >&2; exit 1; }
        done
        echo "$package: installed and removed"
    else
        echo "$package: unpacked; skipped: dpkg -i needs root, and no other package of this name"
    fi
fi
