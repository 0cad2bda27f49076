#!/bin/sh
# steady.sh PROGRAM [ARGUMENT…]: run a program that was built with a sanitizer. Those of gcc 12 can't
# place their memory if the kernel randomizes more than 28 bits of an address; some containers forbid
# to change that.
set -eu
. "${0%/*}/../support.sh"
if setarch -R true 2>/dev/null; then
    exec setarch -R "$@"
fi
[ "$(cat /proc/sys/vm/mmap_rnd_bits)" -le 28 ] ||
    lacks steady-addresses 'sanitizers fail to start: setarch -R is refused, and vm.mmap_rnd_bits is over 28'
exec "$@"
