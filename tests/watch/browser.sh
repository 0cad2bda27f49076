#!/bin/sh
# The page of `lockstep watch` in headless Chromium. browser.sh TOOL [PICTURES]
set -eu
here=$(cd "${0%/*}" && pwd)
. "$here/../support.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME="$work" TMPDIR="$work" # where Chromium leaves files, and stops if it cannot
chromium=$(command -v chromium) || lacks chromium 'a browser, 300 MB: chromium'
timeout "$(patient 120)" python3 -B "$here/browser.py" "$chromium" "$1" "$work" ${2:+"$2"}
