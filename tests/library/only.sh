#!/bin/sh
# -DLKS_LIBRARY_ONLY=ON: the library, its headers and the engines, and nothing else. only.sh SOURCE BUILD CC.
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2 cc=$3
grep -Eq '^LKS_(SANITIZE:STRING=.|COVERAGE:BOOL=ON)' "$build/CMakeCache.txt" && lacks plain-build 'the plain build tests it'
work_folder

# An object that BUILD compiled by the same command is copied instead of compiled again.
sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$build/compile_commands.json" >"$work/commands"
cat >"$work/launch" <<END
#!/bin/sh
line= object= last=
for word; do
    case "\$last \$word" in
    -MT\ * | -MF\ *) last=; continue ;;
    *\ -MT | *\ -MF) last=\$word; continue ;;
    *\ -MD) continue ;;
    esac
    [ "\$last" != -o ] || object=\$word
    line="\${line:+\$line }\$word" last=\$word
done
if grep -qxF -e "\$line" '$work/commands' && cp "$build/\$object" "\$object"; then
    echo "\$object" >>'$work/copied'
else
    exec "\$@"
fi
END
chmod +x "$work/launch"
value() { # NAME: of BUILD's cache
    sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}
{
    cmake -S "$source" -B "$work/build" -G Ninja -DLKS_LIBRARY_ONLY=ON -DCMAKE_C_COMPILER="$cc" -DCMAKE_INSTALL_LIBDIR=lib \
        -DCMAKE_C_FLAGS="$(value CMAKE_C_FLAGS)" -DCMAKE_BUILD_TYPE="$(value CMAKE_BUILD_TYPE)" -DLKS_WERROR="$(value LKS_WERROR)" \
        -DCMAKE_C_COMPILER_LAUNCHER="$work/launch" -DCMAKE_CXX_COMPILER_LAUNCHER="$work/launch" &&
        cmake --build "$work/build" -j2 && cmake --install "$work/build" --prefix "$work/prefix"
} >"$work/log" 2>&1 || fail 'the build'
[ "$(wc -l <"$work/copied")" -gt 100 ] || echo 'few objects could be copied from the build'
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
"$work/mlp" >"$work/printed" || fail "mlp: exit code $?"
grep -q '^epoch 4: loss 0\.002' "$work/printed" || fail 'mlp has not learned'
