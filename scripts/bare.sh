#!/bin/sh
# ./quickstart and ./check in a bare Debian: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/campaign.sh --chroot=bookworm|trixie [--without-onednn] [--root=/DIR] [-- CHECK ARGUMENTS]

Runs ./quickstart --iters=20 and ./check as a new user of Debian 12 (bookworm) or 13 (trixie) would: in
a bare system made by debootstrap, with git and a clone of the last commit, and nothing else. Prints the
end of both outputs. Needs root, debootstrap, 4 GB of disk, and a download of 1 GB from a mirror of
Debian's (LKS_DEBIAN_MIRROR, by default http://deb.debian.org/debian).

  --without-onednn   make oneDNN's packages unavailable there
  --root=/DIR        keep the system in /DIR, or use the one that /DIR contains; by default it is removed
  CHECK ARGUMENTS    for ./check, for example -R kernels
END
}

release='' onednn=yes root=
while [ $# -gt 0 ]; do
    case $1 in
    --chroot=bookworm | --chroot=trixie) release=${1#*=} ;;
    --without-onednn) onednn=no ;;
    --root=/*) root=${1#*=} ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) usage >&2; die "can't read the argument $1" ;;
    esac
    shift
done
[ -n "$release" ] || die 'give --chroot=bookworm or --chroot=trixie'
[ "$(id -u)" -eq 0 ] || die 'run it as root: it mounts file systems and calls chroot'
command -v debootstrap >/dev/null || die 'install the Debian package debootstrap'

# Mounts end with the namespace, however this ends.
if [ -z "${LKS_BARE-}" ]; then
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    code=0
    set -- -- "$@"
    [ $onednn = yes ] || set -- --without-onednn "$@"
    LKS_BARE=yes unshare --mount --propagation private scripts/bare.sh --chroot="$release" \
        --root="${root:-$work/root}" "$@" || code=$?
    exit $code
fi

logs=out/chroot-$release/logs
mkdir -p "$logs" "$root"
[ -x "$root/usr/bin/apt-get" ] || step debootstrap debootstrap --variant=minbase "$release" "$root" \
    "${LKS_DEBIAN_MIRROR:-http://deb.debian.org/debian}"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# As Debian's installer writes it. Without the host's name Open MPI asks name servers for it, for seconds.
printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n' "$(hostname)" >"$root/etc/hosts"
apt-config dump 2>/dev/null | grep -iE '^Acquire::https?::Proxy' >"$root/etc/apt/apt.conf.d/90proxy" || :
# unshare --mount in the chroot needs a mount at its root.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --bind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
in_root() {
    chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb CI=true \
        ${LKS_TEST_PATIENCE:+LKS_TEST_PATIENCE="$LKS_TEST_PATIENCE"} "$@"
}
pins=$root/etc/apt/preferences.d/without-onednn
rm -f "$pins"
if [ $onednn = no ]; then
    printf 'Package: libdnnl*\nPin: release *\nPin-Priority: -1\n' >"$pins"
    step purge in_root apt-get purge -y '^libdnnl'
fi
step update in_root apt-get update
step git in_root apt-get install -y --no-install-recommends git
git bundle create --quiet "$root/tmp/lockstep.bundle" HEAD
rm -rf "$root/root/lockstep"
step clone in_root git clone /tmp/lockstep.bundle /root/lockstep

# run NAME COMMAND...: run it in the clone, and print the end of its output.
failed=
run() {
    name=$1
    shift
    began=$(date +%s)
    code=0
    # shellcheck disable=SC2016 # the shell in the chroot expands it
    in_root sh -c 'cd /root/lockstep && exec "$@"' sh "$@" >"$logs/$name.log" 2>&1 </dev/null || code=$?
    tail -n 40 "$logs/$name.log"
    echo "== $release: $* ended with exit code $code after $(($(date +%s) - began)) s; its output is in $logs/$name.log"
    [ $code -eq 0 ] || failed=yes
}
run quickstart ./quickstart --iters=20
run check ./check "$@"
[ -z "$failed" ]
