#!/bin/sh
# Remove what `make install` put under $DESTDIR and PREFIX: the list is that of a fresh install into a temporary folder.
#   uninstall.sh BUILD PREFIX
set -eu

build=$1 prefix=$2
root=${DESTDIR:-}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

[ -f "$build/libebb-core.so" ] || {
    echo "uninstall: nothing was built in $build, so it is not known what was installed; 'make build' does that" >&2
    exit 1
}
DESTDIR=$stage cmake --install "$build" --prefix "$prefix" >/dev/null
(cd "$stage" && find . ! -type d) | sed 's/^\.//' | while IFS= read -r file; do
    [ -e "$root$file" ] || [ -L "$root$file" ] || continue
    rm -f "$root$file"
    echo "removed $root$file"
done
# Of the folders only that of the headers is ours.
find "$stage" -type d -path '*/include/ebb' | sed "s|^$stage||" | while IFS= read -r folder; do
    [ ! -d "$root$folder" ] || rmdir "$root$folder"
done
