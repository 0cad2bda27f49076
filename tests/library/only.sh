#!/bin/sh
# -DLKS_LIBRARY_ONLY=ON: the library, its headers and the engines, and nothing else. only.sh SOURCE BUILD CC.
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2 cc=$3
grep -Eq '^LKS_(SANITIZE:STRING=.|COVERAGE:BOOL=ON)' "$build/CMakeCache.txt" && lacks plain-build 'the plain build tests it'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
{
    cmake -S "$source" -B "$work/build" -G Ninja -DLKS_LIBRARY_ONLY=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 \
        -DCMAKE_C_COMPILER="$cc" -DCMAKE_INSTALL_LIBDIR=lib &&
        cmake --build "$work/build" -j2 && cmake --install "$work/build" --prefix "$work/prefix"
} >"$work/log" 2>&1 || fail "$(tail -n 30 "$work/log")"
(cd "$work/prefix" && find . -type f | LC_ALL=C sort) >"$work/files"
if grep -Ev '^\./(include/lockstep/|lib/(cmake/lockstep|pkgconfig)/|lib/liblockstep\.|lib/lockstep/lockstep_(gloo|mpi|mpich)\.so$)' \
    "$work/files"; then
    fail 'more than the library is installed'
fi
for file in include/lockstep/lockstep.h lib/liblockstep.a lib/pkgconfig/lockstep.pc; do
    grep -q "$file" "$work/files" || fail "$file is missing"
done
"$cc" -o "$work/mlp" "$source/examples/mlp.c" -I"$work/prefix/include" -L"$work/prefix/lib" -llockstep -lm \
    -Wl,-rpath,"$work/prefix/lib"
"$work/mlp" | grep -q '^epoch 4: loss 0\.002' || fail 'mlp has not learned'
