#!/bin/sh
# A module whose packages were missing is built after they were installed: configures a build without any of
# them, and again with this machine's. And a project that has lockstep as a folder gets the library alone. No flag
# of the builder's changes arithmetic, and no build is begun for a processor that can't have the same bytes.
# configure.sh SOURCE BUILD
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2
work_folder
built=$work/it\'s # an apostrophe in the path

modules() {
    sed -n 's,^build tools/\(lockstep_[a-z]*\.so\):.*,\1,p' "$1/build.ninja" | sort
}

# Required libraries only, no C++ compiler, and nothing in the system's folders.
mkdir "$work/pkgconfig"
for library in jansson libxxhash zlib libmd; do
    ln -s "$(pkg-config --variable=pcfiledir $library)/$library.pc" "$work/pkgconfig"
done
lib=$(pkg-config --variable=libdir zlib)
CXX=/nonexistent PKG_CONFIG_LIBDIR=$work/pkgconfig cmake -S "$source" -B "$built" -G Ninja -DLKS_TESTS=OFF \
    -DCMAKE_IGNORE_PATH="/bin;/usr/bin;/usr/local/bin;/usr/include;/lib;/usr/lib;$lib" \
    -DCMAKE_C_COMPILER="$(command -v cc)" -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" \
    -DPKG_CONFIG_EXECUTABLE="$(command -v pkg-config)" >"$work/first.log" 2>&1 || fail 'no build without modules'
[ -z "$(modules "$built")" ] || fail "modules without their libraries: $(modules "$built")"

cmake -S "$source" -B "$built" -UCMAKE_IGNORE_PATH -DCMAKE_C_FLAGS=-ffinite-math-only >"$work/second.log" 2>&1 || fail 'configuring again fails'
modules "$build" | grep -v 'lockstep_\(cuda\|nccl\)' >"$work/all" || :
[ -s "$work/all" ] || fail 'no modules were found in the build'
modules "$built" | cmp "$work/all" - ||
    fail "modules of a build that began without their libraries: $(modules "$built")"

math=$(sed -n 's,^ *"command": "\(.*\) -o .*/src/base/number/math\.c"\,$,\1,p' "$built/compile_commands.json" | sed 's/\\"/"/g')
ninja -C "$built" commit/lks_commit.h >"$work/commit.log" 2>&1 || fail 'a path with an apostrophe'
(cd "$built" && eval "$math" -E -dM "'$source/src/base/number/math.c'") >"$work/macros" || fail "can't preprocess: $math"
grep -q '__FINITE_MATH_ONLY__ 0$' "$work/macros" || fail "-ffinite-math-only is left: $math"
if [ "$(uname -m)" = x86_64 ]; then
    cmake -S "$source" -B "$work/short" -G Ninja -DCMAKE_C_FLAGS=-m32 -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY \
        >"$work/short.log" 2>&1 && fail 'a build with 32 bits'
    grep -q '^ *lockstep needs a 64-bit' "$work/short.log" || fail "32 bits: $(tail "$work/short.log")"
fi

mkdir "$work/part"
cat >"$work/part/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(net C)
add_subdirectory("$source" lockstep)
add_executable(net "$source/examples/mlp.c")
target_link_libraries(net PRIVATE lockstep::lockstep m)
END
# The whole project may have a compiler of which CMake knows nothing.
cmake -S "$work/part" -B "$work/part/build" -G Ninja -DCMAKE_C_COMPILER_FORCED=ON >"$work/part.log" 2>&1 ||
    fail "as a part: $(tail "$work/part.log")"
ninja -C "$work/part/build" -t commands all >"$work/part.log" || fail 'as a part: no build'
grep -q -- '-o net ' "$work/part.log" || fail 'as a part: the program is not built'
grep -q -- '-O2 .*/src/base/status\.c' "$work/part.log" || fail 'as a part: built without optimization'
! grep -q '/src/train/' "$work/part.log" || fail 'as a part: more than the library is built'
grep -q '^CMAKE_BUILD_TYPE:STRING=$' "$work/part/build/CMakeCache.txt" || fail "as a part: the whole project's build type is set"
grep -q ' lks_ddp_open;' "$work/part/build/lockstep/library.map" || fail 'as a part: the library exports nothing'
! grep -q lockstep_mpi "$work/all" || grep -q '/engines/mpi\.c' "$work/part.log" || fail 'as a part: built without an engine'
