#!/bin/sh
# steady.sh PROGRAM [ARGUMENT…]: run a program that was built with a sanitizer. Those of gcc 12 can't
# place their memory if the kernel randomizes addresses widely; some containers forbid to change that.
if setarch -R true 2>/dev/null; then
    exec setarch -R "$@"
fi
exec "$@"
