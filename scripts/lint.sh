#!/bin/sh
# Looks through the repository's files for what must not be there; a CTest of its own.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source_files | grep -E '(\.(c|h|cc|sh|py|conf|txt|cmake)|^quickstart|^check|^\.ci/run)$' |
    grep -vx 'scripts/lint.sh' >"$work/all"
grep -E '\.(c|h|cc)$' "$work/all" >"$work/c" || die "there are no sources to look at"

# search WHAT PATTERN: lines of the files that match.
search() {
    tr '\n' '\0' <"$work/all" | xargs -0 grep -nIE -e "$2" /dev/null >"$work/hits" || true
    [ ! -s "$work/hits" ] || { echo "$1:"; cat "$work/hits"; } >>"$work/report"
}

: >"$work/report"
search 'left open' '\b(TODO|FIXME|XXX|HACK)\b'
# Other bits on another machine, or from another compiler: docs/numerics.md.
search 'flags that make bits depend on the machine' '-m(arch|tune)=native|-ffast-math|-Ofast'
search 'white space at the end of a line' '[[:space:]]+$'

# Versions of the tool format differently; ours is Debian 12's.
if command -v clang-format >/dev/null && clang-format --version | grep -q 'version 14\.'; then
    tr '\n' '\0' <"$work/c" | xargs -0 clang-format --dry-run -Werror >/dev/null 2>"$work/hits" ||
        { echo 'the format target would change:'; grep 'error:' "$work/hits"; } >>"$work/report"
else
    echo 'clang-format 14 is not here: formatting was not looked at'
fi

cat "$work/report"
[ ! -s "$work/report" ]
