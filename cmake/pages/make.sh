#!/bin/sh
# Man pages and completions of shells, from the tables of the program itself. The build runs this.
#     make.sh FORMATS.md DATE OUT    OUT/table holds the output of `lockstep help --table`
set -eu
export LC_ALL=C
formats=$1 date=$2 out=$3 here=${0%/*}
mkdir -p "$out/man/man1" "$out/man/man5" "$out/bash" "$out/zsh" "$out/fish"
version=$(sed -n 's/^version.//p' "$out/table")
# page NAME SECTION COMMAND...: gzip without name and time, so that equal pages are equal files.
page() {
    name=$1 section=$2
    shift 2
    "$@" >"$out/page"
    gzip -9nc "$out/page" >"$out/man/man$section/$name.$section.gz"
}
for name in lockstep $(sed -n 's/^command.\([a-z]*\).*/lockstep-\1/p' "$out/table"); do
    page "$name" 1 awk -v page="$name" -v date="$date" -f "$here/man.awk" "$out/table"
done
page lockstep-settings 5 awk -v page=lockstep-settings -v date="$date" -f "$here/man.awk" "$out/table"
page lockstep-formats 5 awk -v page=lockstep-formats -v section=5 -v version="$version" -v date="$date" \
    -v about='files that lockstep reads and writes' -f "$here/markdown.awk" "$formats"
{ cat "$here/bash.sh" && awk -f "$here/bash.awk" "$out/table"; } >"$out/bash/lockstep"
awk -f "$here/zsh.awk" "$out/table" >"$out/zsh/_lockstep"
awk -f "$here/fish.awk" "$out/table" >"$out/fish/lockstep.fish"
rm "$out/page"
