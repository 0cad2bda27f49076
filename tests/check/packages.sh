#!/bin/sh
# The packages that ./quickstart and ./check choose, with package tools that only pretend: packages.sh SOURCE
set -eu
. "${0%/*}/../support.sh"
source=$1
work_folder
mkdir "$work/bin"
PATH=$work/bin:$PATH
logs=$work
cd "$source"
# shellcheck source=scripts/common.sh
. scripts/common.sh

# tool NAME: a program in the path; its text is standard input.
tool() {
    { echo '#!/bin/sh' && cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
tool apt-cache <<END
[ "\$1" = policy ] || { cut -d ' ' -f 1 '$work/lists'; exit; }
sed -n "s/^\$2 \(.*\)/\$2:\n  Installed: (none)\n  Candidate: \1/p" '$work/lists'
END
tool ldconfig <<END
cat '$work/libraries'
END
# One library's file for a package.
tool apt-get <<END
echo "\$*" >>'$work/calls'
case "\$*" in
*libdnnl2*) echo '	libdnnl.so.2 (libc6,x86-64) => /lib/libdnnl.so.2' >>'$work/libraries' ;;
*libdnnl3.6*) echo '	libdnnl.so.3.6 (libc6,x86-64) => /lib/libdnnl.so.3.6' >>'$work/libraries' ;;
esac
END
tool sudo <<'END'
while [ "$1" != apt-get ]; do shift; done
exec "$@"
END

# chooses PACKAGE LISTS: of these lists, lines of PACKAGE CANDIDATE, `want_onednn` installs PACKAGE; '': none,
# but it says so.
chooses() {
    printf '%s\n' "$2" >"$work/lists"
    : >"$work/calls"
    echo '	libc.so.6 (libc6,x86-64) => /lib/libc.so.6' >"$work/libraries"
    want_onednn >"$work/said"
    if [ -n "$1" ]; then
        grep -q "^-o .* install .* $1\$" "$work/calls" || fail "no $1 from: $2; $(cat "$work/calls")"
        grep -q "isn't installed" "$work/said" && fail "it says that there is none: $2"
        : >"$work/calls"
        want_onednn
        [ ! -s "$work/calls" ] || fail 'a package that is there is installed again'
    else
        grep -q 'works without it' "$work/said" || fail "it says nothing without oneDNN: $2"
    fi
}
bookworm='libdnnl2 2.6.3-1
libdnnl-dev 2.6.3-1
clang-format 1:14.0-55.7~deb12u1'
trixie='libdnnl-dev 3.7.2+ds-2
libdnnl3.6 3.7.2+ds-2
clang-format 1:19.0-63'
chooses libdnnl2 "$bookworm"
chooses libdnnl3.6 "$trixie"
chooses libdnnl3.6 "libdnnl2 2.6.3-1
$trixie"
chooses libdnnl2 'libdnnl2 2.6.3-1
libdnnl3.6 (none)'
chooses '' 'libdnnl3.6 (none)'
chooses '' ''
[ ! -s "$work/calls" ] || fail 'it calls apt-get without a package'

# Other versions of clang-format format differently.
printf '%s\n' "$bookworm" >"$work/lists"
[ "$(package_named clang-format '1:14\.')" = clang-format ] || fail "no clang-format of Debian 12"
printf '%s\n' "$trixie" >"$work/lists"
[ -z "$(package_named clang-format '1:14\.')" ] || fail "clang-format of Debian 13"

# An old cmake is named before anything is installed.
for version in 3.21.7 3.9.0 2.8; do
    echo "echo 'cmake version $version' && echo && echo 'CMake suite maintained'" | tool cmake
    : >"$work/calls"
    if (need cmake no-such-package) >"$work/said" 2>&1; then
        fail "cmake $version is taken"
    fi
    grep -q "/bin/cmake has version $version, and lockstep needs 3.22 or newer" "$work/said" ||
        fail "cmake $version: $(cat "$work/said")"
    [ ! -s "$work/calls" ] || fail 'packages are installed with an old cmake'
done
for version in 3.22.0 3.22.1-rc1 3.31.6 4.1.0; do
    echo "echo 'cmake version $version'" | tool cmake
    (need cmake) >"$work/said" 2>&1 || fail "cmake $version: $(cat "$work/said")"
done

# The default text: without a download, scripts/novels.sh fails with a reason and leaves no file.
tool apt-get <<END
echo "\$*" >>'$work/calls'
echo 'E: Temporary failure resolving' >&2
exit 100
END
! (need no-such-package) >"$work/said" 2>&1 || fail 'a package without network'
grep -q "^These packages couldn't be installed, which needs the network.*: no-such-package$" "$work/said" ||
    fail "without network: $(cat "$work/said")"
: >"$work/calls"
if scripts/novels.sh "$work/novels.txt" >"$work/said" 2>&1; then
    fail 'novels without a download'
fi
grep -q 'download r-cran-janeaustenr=' "$work/calls" || fail "apt-get was called with $(cat "$work/calls")"
grep -q "apt-get can't download r-cran-janeaustenr" "$work/said" || fail "novels.sh: $(cat "$work/said")"
# A package with other contents is refused.
tool apt-get <<'END'
echo other >r-cran-janeaustenr_1.0.0-1_all.deb
END
cat >"$work/package.py" <<'END' # its file of novels has another line at each place
import io, struct, sys, tarfile, zlib
rdb = bytearray(1500000)
for at in 1063742, 0, 352043, 703416, 878612, 1334779:
    packed = zlib.compress(bytes(27) + struct.pack(">IxxxxI", 1, 5) + b"other")
    rdb[at + 4 : at + 4 + len(packed)] = packed
info = tarfile.TarInfo("./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
info.size = len(rdb)
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    tar.addfile(info, io.BytesIO(rdb))
END
echo "exec python3 '$work/package.py'" | tool dpkg-deb
if scripts/novels.sh "$work/novels.txt" >"$work/said" 2>&1; then
    fail 'other novels are taken'
fi
grep -q 'r-cran-janeaustenr has other novels than expected' "$work/said" || fail "other novels: $(cat "$work/said")"
[ ! -e "$work/novels.txt" ] && [ ! -e "$work/novels.txt.part" ] || fail 'novels.sh leaves a file'

# A step shows ninja's progress on a terminal, and leaves nothing of it there. Elsewhere it is silent.
export work
cat >"$work/slow" <<'END'
. scripts/common.sh
logs=$work progress_period=0.1
step slow sh -c 'echo "[3/9] compiling"; n=0
    until grep -q "slow \[3/9\]" "$work/typescript" || [ $n -gt 300 ]; do sleep 0.1; n=$((n + 1)); done'
echo end
END
sh -eu "$work/slow" >"$work/said" 2>&1 &
silent=$!
if have bsdutils; then
    script -qefc "sh -eu '$work/slow'" "$work/typescript" </dev/null >/dev/null || fail 'a step on a terminal fails'
    grep -q 'slow \[3/9\], [0-9]* s' "$work/typescript" || fail "on a terminal: $(cat "$work/typescript")"
else
    echo 'slow [3/9]' >"$work/typescript"
fi
wait $silent
[ "$(cat "$work/said")" = end ] || fail "not on a terminal: $(cat "$work/said")"

# The folder of a run that isn't quickstart's is left alone.
mkdir "$work/run" && : >"$work/run/metrics.jsonl"
refuses() { # SENTENCE ARGUMENT...: the last line of ./quickstart ARGUMENT...
    sentence=$1
    shift
    ! ./quickstart "$@" >"$work/said" 2>&1 || fail "./quickstart $*"
    tail -n 1 "$work/said" | grep -qF -- "$sentence" || fail "./quickstart $*: $(tail -n 3 "$work/said")"
}
refuses "$work/run is the folder of another run" --input="$source/README.md" --out="$work/run"
# Other forms that people type, and a sentence for each that has no meaning.
refuses "$work/run is the folder of another run" --input "$source/README.md" --out "$work/run" --ranks 1
refuses "$work/run is the folder of another run" "$source/README.md" --out="$work/run"
refuses "docs is a folder: give one text file" docs
refuses 'there is no file' no-such.txt
echo short >"$work/short.txt"
refuses 'short.txt is too short: give a text of about 650 characters or more' "$work/short.txt"
refuses 'can take one text only' "$source/README.md" --input="$source/LICENSE"
refuses '--seconds needs a value: --seconds=60' --seconds
refuses '--ranks must be 1, 2, 4 or 8, not 3' --ranks=3
refuses "can't read the argument --colour" --colour=red
[ "$(ls "$work/run")" = metrics.jsonl ] || fail "quickstart left in the folder of a run: $(ls "$work/run")"
for script in novels corpus; do
    [ "$(scripts/$script.sh --help)" = "Usage: scripts/$script.sh FILE" ] || fail "$script.sh --help"
done
