#!/bin/sh
# Searches the repository's files for forbidden text, and the symbols of BUILD's objects (build-check) for
# what breaks the order of rooms; a CTest.
#
#     lint.sh [BUILD]
set -eu
build=$(realpath "${1:-$(dirname "$0")/../build-check}")
cd "$(dirname "$0")/.."
. scripts/common.sh
. tests/support.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source_files | grep -E '(\.(c|h|cc|sh|py|conf|txt|cmake)|^quickstart|^check|^\.ci/run)$' |
    grep -vx 'scripts/lint.sh' >"$work/all"
grep -E '\.(c|h|cc)$' "$work/all" >"$work/c" || die "there are no sources to look at"

# search WHAT PATTERN: lines of the files that match.
search() {
    tr '\n' '\0' <"$work/all" | xargs -0 grep -nIE -e "$2" /dev/null >"$work/hits" 2>&1 || true
    [ ! -s "$work/hits" ] || { echo "$1:"; cat "$work/hits"; } >>"$work/report"
}

: >"$work/report"
search 'left open' '\b(TODO|FIXME|XXX|HACK)\b'
# Other bits on another machine, or from another compiler: docs/reference/numerics.md.
search 'flags that make bits depend on the machine' '-m(arch|tune)=native|-ffast-math|-Ofast'
search 'white space at the end of a line' '[[:space:]]+$'

search_in() { # FILES WHAT PATTERN
    grep -E "$1" "$work/all" | grep -vx 'tests/support\..*' | tr '\n' '\0' |
        xargs -0 grep -nIE -e "$3" /dev/null >"$work/hits" 2>&1 || true
    [ ! -s "$work/hits" ] || { echo "$2:"; cat "$work/hits"; } >>"$work/report"
}
search_in '^tests/.*\.[ch]$' "a skip that counts as passed; lks_test_lacks() doesn't" '(^|[^_a-z])skip\(\);'
search_in '^tests/.*\.(c|h|sh)$' 'a skip without its reason: lks_test_lacks(), or lacks of tests/support.sh' \
    'return 77;|exit\(77\)|^[^#]*exit 77$'

# What a room may use: the table of docs/inside/architecture.md, compared with #include lines, and with symbols, since a
# header or a transitive #include can hide what a room uses. Its order allows no circle.
python3 -B scripts/rooms.py "$build" >>"$work/report" 2>&1 || true

# The version stands in one place, and CHANGELOG.md begins with it.
version=$(sed -n 's/^#define LKS_VERSION_[MPS][A-Z]* *"*\([^" ]*\)"*$/\1/p' include/lockstep/status.h | paste -sd. | sed 's/\.\(-\|$\)/\1/')
heading=$(sed -n 's/^## //p' CHANGELOG.md | head -n 1 | sed 's/, not released yet$/-dev/')
[ "$version" = "$heading" ] ||
    echo "LKS_VERSION_TEXT is $version, but CHANGELOG.md begins with ${heading%-dev} ($heading)" >>"$work/report"

# `podman build` copies no builds, runs and data.
[ .dockerignore -ef .gitignore ] || echo '.dockerignore is no link to .gitignore' >>"$work/report"

# Pages: short lines, a short README, and links that lead somewhere.
source_files | grep '\.md$' >"$work/pages" || die "there are no pages to look at"
tr '\n' '\0' <"$work/pages" | LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{161,}' /dev/null | cut -c1-120 >"$work/hits" || true
[ ! -s "$work/hits" ] || { echo 'a line of a page over 160 columns:'; cat "$work/hits"; } >>"$work/report"
[ "$(wc -l <README.md)" -le 120 ] || echo "README.md has $(wc -l <README.md) lines; 120 are allowed" >>"$work/report"
# cmake/install.cmake copies the pages of docs and of the top folder.
not_installed() { # PAGE TARGET
    case $1:$(realpath --relative-to=. "$2") in
    *:docs | *:docs/* | *:examples/* | *:[A-Z]*.md | *:LICENSE) false ;;
    docs/*:* | [A-Z]*.md:*) true ;;
    *) false ;;
    esac
}
while IFS= read -r page; do
    # Code between backquotes has no links; an address with a scheme is not a file.
    awk '/^```/ { code = !code; next } !code' "$page" | sed 's/`[^`]*`//g' | grep -oE '\]\([^)]*\)' | sed 's/^](//; s/)$//' |
        grep -vE '^[a-z]+:' | while IFS= read -r link; do
            file=${link%%#*} target=$page
            [ -z "$file" ] || target=$(dirname "$page")/$file
            if [ ! -e "$target" ]; then
                echo "$page: a link to $link, which doesn't exist"
            elif not_installed "$page" "$target"; then
                echo "$page: a link to $link, which isn't installed next to the page: name the path without a link"
            elif [ "$file" != "$link" ] && ! sed -n 's/^##* //p' "$target" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-' |
                grep -qx -e "${link#*#}"; then
                echo "$page: a link to $link: that page has no such heading"
            fi
        done
done <"$work/pages" >>"$work/report"

# Phrases that we don't use, in text that people read.
# shellcheck disable=SC2046 # names without blanks
python3 -B scripts/words.py --clean $(source_files) >>"$work/report" 2>&1 || true

# Versions of the tool format differently. Ours is Debian 12's.
formats=yes
if have clang-format; then
    tr '\n' '\0' <"$work/c" | xargs -0 clang-format --dry-run -Werror >/dev/null 2>"$work/hits" ||
        { echo 'cmake --build build-check --target format would change:'; grep 'error:' "$work/hits"; } >>"$work/report"
else
    formats=no
fi

cat "$work/report"
[ ! -s "$work/report" ] || exit 1
[ $formats = yes ] || lacks clang-format-14 'formatting was not checked'
