#!/bin/sh
# Usage: scripts/corpus.sh FILE
#
# Writes the built-in corpus: this repository's sources and documents, concatenated in the order of
# their names. Nothing is fetched, and the same commit gives the same bytes everywhere.
set -eu
case $#:${1-} in
1:--help | 1:-h) echo 'Usage: scripts/corpus.sh FILE'; exit 0 ;;
1:[!-]*) ;;
*) echo 'Usage: scripts/corpus.sh FILE' >&2; exit 2 ;;
esac
case $1 in /*) to=$1 ;; *) to=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
. scripts/common.sh

source_files | grep -E '\.(c|h|md)$' | grep -v '^tests/figures/' >"$to.list" ||
    die "no sources found in $PWD"
while IFS= read -r file; do
    cat -- "$file"
    echo
done <"$to.list" >"$to.part"
rm -f "$to.list"
mv -f "$to.part" "$to"
