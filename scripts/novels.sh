#!/bin/sh
# Usage: scripts/novels.sh FILE
#
# Writes Jane Austen's six novels, which are in the public domain, to FILE: 4 MB of English prose. They
# come from Project Gutenberg by way of the Debian package r-cran-janeaustenr, the same file in Debian 12
# and 13. apt-get downloads it (1.6 MB, without root), and nothing is installed. The result has the same
# bytes everywhere, or the script fails. If FILE has these bytes already, no network is needed.
set -eu
case ${1-} in
--help | -h) echo 'Usage: scripts/novels.sh FILE'; exit 0 ;;
'' | -*) echo 'Usage: scripts/novels.sh FILE' >&2; exit 2 ;;
esac
[ $# -eq 1 ] || { echo 'Usage: scripts/novels.sh FILE' >&2; exit 2; }
case $1 in /*) to=$1 ;; *) to=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
. scripts/common.sh
package=r-cran-janeaustenr version=1.0.0-1
sum=af85ff4a2ae2b0d5482546cf90e7260461253c52c59a00ffc287dc09857ebea1
is_right() { printf '%s  %s\n' "$sum" "$1" | sha256sum --check --status 2>/dev/null; }

! is_right "$to" || exit 0
command -v apt-get >/dev/null || die "this system has no apt-get for the package $package"
work=$(mktemp -d)
trap 'rm -rf "$work"; rm -f "$to.part"' EXIT
trap 'exit 1' INT TERM HUP
# A network that doesn't answer must not hold up those who call this.
(cd "$work" && timeout 60 apt-get -o APT::Sandbox::User=root -o Acquire::Retries=0 -o Acquire::http::Timeout=10 \
    -o Acquire::https::Timeout=10 download "$package=$version") || die "apt-get can't download $package"
dpkg-deb --fsys-tarfile "$work/$package"_*.deb |
    tar -xO ./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb >"$work/novels.rdb"

# The file holds one vector of lines per novel, serialized by R and compressed by zlib, at these offsets.
# gzip reads the deflated data after a separate header, and misses only the checksum at the end. A
# serialized vector has 27 bytes, the number of lines, and per line four bytes, the length and the text.
for at in 1063742 0 352043 703416 878612 1334779; do
    { printf '\037\213\010\0\0\0\0\0\0\003' && tail -c "+$((at + 7))" "$work/novels.rdb"; } |
        { gzip -dc 2>/dev/null || :; } |
        perl -e 'local $/; my (undef, @lines) = unpack "x27 N (x4 N/a)*", <STDIN>; print "$_\n" for @lines'
done >"$to.part"
is_right "$to.part" || die "$package has other novels than expected"
mv -f "$to.part" "$to"
