#!/bin/sh
# Debian packages and a source tarball: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/package.sh [--out=out/packages] [--tree=DIR] [--chroot]

Makes, from the last commit,

  lockstep-VERSION.tar.gz   the sources, made twice: both must be equal, byte for byte
  *.deb                     packages for the Debian on which it runs, built from that tarball, twice in
                            different folders: both must be equal, byte for byte
  SHA256SUMS, NOTES.md      sums of these files, how to install them, and this version's part of
                            CHANGELOG.md

and has lintian check the packages, if it is installed (its errors and warnings are errors here).

  --out=DIR    folder for them
  --tree=DIR   build once, from this folder with its changes; no tarball
  --chroot     then install the packages in a bare Debian of that release (debootstrap, as root; some
               minutes and a download of 100 MB), train there, look at the runs, build a program, remove
               the packages, and check that no file is left. LKS_PACKAGE_ROOT=DIR uses the Debian in DIR
END
}

out=out/packages tree='' chroot=
for arg; do
    case $arg in
    --out=?*) out=${arg#*=} ;;
    --tree=?*) tree=${arg#*=} ;;
    --chroot) chroot=yes ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; die "can't read the argument $arg" ;;
    esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
logs=$out/logs
mkdir -p "$logs"
# shellcheck disable=SC2086 # a list of names
need $build_packages g++ libgloo-dev libzip-dev libsentencepiece-dev libopenmpi-dev libcairo2-dev libmicrohttpd-dev libcurl4-openssl-dev libncurses-dev libhwloc-dev dpkg-dev file git
work=$(mktemp -d)
root='' began=$(date +%s)
# shellcheck disable=SC2317 # by trap
remove() {
    [ -z "$root" ] || umount "$root/proc" 2>/dev/null || :
    rm -rf --one-file-system "$work"
}
trap remove EXIT
trap 'exit 1' INT TERM HUP

# say SENTENCE: print it, with the time since the start.
say() {
    echo "== $(($(date +%s) - began)) s: $1"
}

# stage SENTENCE NAME COMMAND...: a step that prints what it does, because some take minutes.
stage() {
    say "$1"
    shift
    step "$@"
}

# packages SOURCE OUT: paths of the build don't get into what it makes, and times are the commit's.
packages() {
    cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_INSTALL_PREFIX=/usr -DLKS_TESTS=OFF -DLKS_PACKAGES=ON \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS="-ffile-prefix-map=$1=. -fstack-protector-strong" \
        -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$1=. -fstack-protector-strong" -DCMAKE_SHARED_LINKER_FLAGS=-Wl,-z,relro,-z,now \
        -DCMAKE_MODULE_LINKER_FLAGS=-Wl,-z,relro,-z,now -DCMAKE_EXE_LINKER_FLAGS='-pie -Wl,-z,relro,-z,now' &&
        cmake --build "$1/build" &&
        (cd "$1/build" && SOURCE_DATE_EPOCH=$epoch cpack -B "$2")
}

version=$(sed -n 's/^#define LKS_VERSION_[MPS][A-Z]* *"*\([^" ]*\)"*$/\1/p' "${tree:-.}/include/lockstep/status.h" | paste -sd. | sed 's/\.\(-\|$\)/\1/')
if [ -n "$tree" ]; then
    epoch=$(git -C "$tree" log -1 --format=%ct 2>/dev/null || sed -n 3p "$tree/cmake/identity.txt")
    cp -a "$tree" "$work/tree"
    rm -rf "$work/tree/build"
    stage "building the packages of $tree" build packages "$work/tree" "$work/debs"
else
    name=lockstep-$version
    commit=$(git rev-parse HEAD)
    epoch=$(git log -1 --format=%ct "$commit")
    for turn in 1 2; do
        # git archive gives every file the commit's time, and gzip -n adds none.
        git archive --format=tar --prefix="$name/" "$commit" | gzip -9n >"$work/$turn.tar.gz"
        mkdir "$work/in$turn"
        tar -xzf "$work/$turn.tar.gz" -C "$work/in$turn"
        stage "building the packages of commit $(git rev-parse --short "$commit"), $turn of 2" "build$turn" packages "$work/in$turn/$name" "$work/debs$turn"
    done
    say 'comparing both builds'
    cmp "$work/1.tar.gz" "$work/2.tar.gz" || die 'two tarballs of one commit differ'
    cp "$work/1.tar.gz" "$out/$name.tar.gz"
    for deb in "$work"/debs1/*.deb; do
        cmp "$deb" "$work/debs2/${deb##*/}" || die "two builds of ${deb##*/} differ"
    done
    mv "$work/debs1" "$work/debs"
fi
for deb in "$work"/debs/*.deb; do
    # "~dev" sorts before the release.
    found=$(dpkg-deb -f "$deb" Version)
    [ "$found" = "$(echo "$version" | sed 's/-dev$/~dev/')-1" ] || die "${deb##*/} has the version $found"
done
dpkg-deb --fsys-tarfile "$work"/debs/lockstep_*.deb | tar -xC "$work" ./usr/bin
env -u LOCKSTEP_MODULES "$work/usr/bin/lockstep" info | grep -q 'gloo.*(lockstep-gloo)' || die 'info names no package for Gloo'
rm -f "$out"/lockstep*.deb "$out"/liblockstep*.deb
cp "$work"/debs/*.deb "$out"
if command -v lintian >/dev/null; then
    # The maintainer's address is the commits' own, whatever it is. The packages aren't for Debian's archive, so
    # no bug asks for them. Pages link to CHANGELOG.md by that name. CPack itself writes scripts that call ldconfig.
    stage 'checking the packages with lintian' lintian lintian --allow-root --fail-on error,warning --suppress-tags \
        bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs,wrong-name-for-upstream-changelog,maintscript-calls-ldconfig \
        "$out"/*.deb
    echo 'lintian: no errors, no warnings'
fi
# The rest of a release's page.
sed -n "/^## ${version%-dev}/,/^## /{/^## /d;p}" "${tree:-.}/CHANGELOG.md" >"$work/changes"
[ -s "$work/changes" ] || die "CHANGELOG.md has no part for $version"
{
    cat <<END
\`sha256sum -c SHA256SUMS\` checks the files.

- The packages are for $(. /etc/os-release && echo "$PRETTY_NAME"), $(dpkg --print-architecture). If they are in this folder, \`sudo apt-get install ./*.deb\` installs all.
- On other systems unpack lockstep-$version.tar.gz, and read README.md there. It also contains the pages that the links below name.
END
    cat "$work/changes"
} >"$out/NOTES.md"
(cd "$out" && find . -maxdepth 1 \( -name 'lockstep*.deb' -o -name 'liblockstep*.deb' -o -name "lockstep-$version.tar.gz" \) -exec sha256sum {} + | LC_ALL=C sort -k 2) >"$out/SHA256SUMS"
say "the packages are in $out"
cat "$out/SHA256SUMS"
[ -n "$chroot" ] || exit 0

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
root=${LKS_PACKAGE_ROOT:-$work/bare}
[ -x "$root/usr/bin/apt-get" ] ||
    stage "making a bare Debian ($release)" debootstrap debootstrap --variant=minbase --include=ca-certificates "$release" "$root" http://deb.debian.org/debian
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mkdir -p "$root/packages"
cp "$out"/*.deb "$root/packages"
in_root() {
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
files() {
    (cd "$root" && find . \( -path ./proc -o -path ./var -o -path ./packages -o -path ./tmp -o -path ./etc/ld.so.cache \) \
        -prune -o -print | LC_ALL=C sort)
}
stage 'fetching its package lists' update in_root apt-get update
# What others bring stays: so install all that ours depend on, and a compiler, first.
stage 'installing a compiler and the libraries there' others in_root sh -c 'apt-get install -y --no-install-recommends gcc libc6-dev pkg-config man-db curl "^libdnnl[0-9.]+\$" \
    $(for deb in /packages/*.deb; do dpkg-deb -f "$deb" Depends | tr "," "\n" | sed "s/|.*//; s/(.*//"; done |
    sort -u | grep -vE "^ *(lib)?lockstep")'
files >"$work/before"
stage 'installing the packages there' install in_root sh -c 'apt-get install -y --no-install-recommends /packages/*.deb'
cat >"$root/tmp/use.sh" <<'END'
set -eux
cd /tmp
lockstep info
lockstep info | grep -q 'gloo: ready'
zcat /usr/share/man/man1/lockstep-train.1.gz >/dev/null
cat /usr/share/doc/lockstep/docs/*/*.md >my.txt
lockstep prep char --input=my.txt --out=my
lockstep train quickstart --dataset=my --out_dir=one --nproc_per_node=1 --max_iters=4 --eval_iters=2
lockstep train quickstart --dataset=my --out_dir=two --nproc_per_node=2 --max_iters=4 --eval_iters=2
cmp one/latest/model.safetensors two/latest/model.safetensors
lockstep sample --out_dir=two --num_samples=1 --max_new_tokens=20
lockstep report one two | grep -q 'best validation loss'
lockstep plot --out=loss.svg one two && grep -q '</svg>' loss.svg
lockstep plot --out=loss.png one two && head -c 4 loss.png | grep -q PNG
lockstep plot one >curve && [ -s curve ]
lockstep watch --html=run.html one two && grep -q '</html>' run.html
lockstep watch --port=0 one two >url &
tries=0
until [ -s url ]; do tries=$((tries + 1)) && [ $tries -lt 200 ] && sleep 0.1; done
curl -sS "$(cat url)" | grep -q '</html>'
(curl -sSN --max-time 5 "$(cat url)events" || :) | grep -q '"names":\["one","two"\]'
kill -INT $! && wait $!
lockstep export --format=nanogpt --out_dir=two --out=ckpt.pt
cc -Wall -Werror -o mlp /usr/share/doc/lockstep/examples/mlp.c $(pkg-config --cflags --libs lockstep) -lm
./mlp >1
cc -Wall -Werror -o static /usr/share/doc/lockstep/examples/mlp.c $(pkg-config --cflags --static --libs lockstep | sed s/-llockstep/-l:liblockstep.a/) -lm
./static | cmp - 1
lockstep run --standalone --nproc-per-node=2 ./mlp | sed 's/^\[[^]]*\] //' | cmp - 1
END
stage 'using them' use in_root sh /tmp/use.sh
stage 'removing them' remove in_root sh -c 'apt-get purge -y $(dpkg-query -W -f "\${Package}\n" "*lockstep*")'
files >"$work/after"
diff "$work/before" "$work/after" || die 'the packages left files'
echo 'Installed, used and removed: nothing is left'
