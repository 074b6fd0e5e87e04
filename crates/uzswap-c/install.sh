#!/bin/sh
# Installs the library for C: header, shared and static library, pkg-config file.
#
#   install.sh PREFIX             builds them first
#   install.sh PREFIX FOLDER      takes libuzswap_c.so and libuzswap_c.a from FOLDER
#
# With DESTDIR the files go below that folder, as packages need it.
set -eu
[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n '4,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
case $1 in
    /*) ;;
    *) echo "$0: PREFIX must be an absolute path: $1" >&2; exit 2 ;;
esac
prefix=$1
here=$(cd "$(dirname "$0")" && pwd)
version=$(cd "$here" && cargo pkgid --offline | sed 's/.*[#@]//')
if [ $# = 2 ]; then
    built=$2
else
    (cd "$here" && cargo build --release --locked --lib)
    target=$(cd "$here" && cargo metadata --offline --no-deps --format-version 1 |
        sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    built=$target/release
fi
soname=libuzswap.so.0 # build.rs has the same
root=${DESTDIR:-}$prefix
for file in libuzswap_c.so libuzswap_c.a; do
    [ -f "$built/$file" ] || { echo "$0: $built has no $file" >&2; exit 1; }
done
install -d "$root/lib/pkgconfig" "$root/include"
install -m 644 "$here/include/uzswap.h" "$root/include/uzswap.h"
install -m 755 "$built/libuzswap_c.so" "$root/lib/libuzswap.so.$version"
install -m 644 "$built/libuzswap_c.a" "$root/lib/libuzswap.a"
ln -sf "libuzswap.so.$version" "$root/lib/$soname"
ln -sf "$soname" "$root/lib/libuzswap.so"
pc=$root/lib/pkgconfig/uzswap.pc
escaped=$(printf '%s' "$prefix" | sed 's/ /\\ /g') # pkg-config splits values at spaces
cat > "$pc" <<PC
prefix=$escaped
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: uzswap
Description: A compressed page store: zswap in user space
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -luzswap
Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
PC
chmod 644 "$pc" # whatever the umask
