#!/bin/sh
# A disk that is really full: a small tmpfs, of sizes at which prep, train and export run out of room
# at different places. They report it and fail, nothing half-written is left, and once there is room the
# run goes on to the bytes of one that always had room.
#
#     full_disk.sh LOCKSTEP
set -eu
. "${0%/*}/../support.sh"
tool=$1
if [ "${2-}" != inside ]; then
    # A mount of our own, as root or as root of a namespace; neither is possible everywhere.
    for how in '-m' '-rm'; do
        if unshare $how mount -t tmpfs none /mnt 2>/dev/null; then
            exec unshare $how "$0" "$tool" inside
        fi
    done
    lacks namespaces 'nothing can be mounted'
fi

fail() {
    echo "$*"
    exit 1
}
disk=/mnt
mount -t tmpfs -o size=16m none $disk
work=$disk/work
mkdir $work
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "%c%s", 97 + i * i % 23, i % 11 ? "" : "\n" }' >$work/text
"$tool" prep char --input=$work/text --out=$work/tokens >$work/log
small=$work/small
mkdir $small

# Run it on a disk of so many KiB. Returns 0 if it had room; otherwise it must have reported what happened.
on_disk_of() { # KIB COMMAND...
    mount -t tmpfs -o size="${1}k" none $small
    shift
    code=0
    "$@" >$work/log 2>$work/err || code=$?
    [ $code -ne 0 ] || return 0
    [ $code -eq 1 ] || fail "exit code $code: $*: $(cat $work/err)"
    grep -q "^lockstep .*$small.*No space left on device" $work/err || fail "$*: $(cat $work/err)"
    return 1
}

train() { # OUT [SETTING...]
    out=$1
    shift
    "$tool" train --dataset=$work/tokens --out_dir="$out" --n_layer=1 --n_head=2 --n_embd=32 \
        --block_size=16 --batch_size=2 --gradient_accumulation_steps=2 --virtual_ranks=2 \
        --max_iters=8 --eval_interval=2 --eval_iters=1 --threads=1 --keep=2 "$@"
}
sum_of() { sha256sum <"$1/latest/model.safetensors"; }
train $work/whole >$work/log
want=$(sum_of $work/whole)

failed=0
for kib in 4 16 60 100 200 250 300 350 400 450 500; do
    if on_disk_of $kib train $small/out --nproc_per_node=2; then
        [ "$(sum_of $small/out)" = "$want" ] || fail "$kib KiB: another model"
    else
        failed=$((failed + 1))
        [ -z "$(find $small -name '*.tmp*')" ] || fail "$kib KiB: $(find $small)"
        mount -o remount,size=8m none $small # without the old uid=, unknown in a namespace
        if [ -e $small/out/latest ]; then
            train $small/out --init_from=resume >$work/log 2>$work/err || fail "$(cat $work/err)"
            [ "$(sum_of $small/out)" = "$want" ] || fail "$kib KiB: another model after resuming"
        fi
    fi
    umount $small
done
[ $failed -gt 4 ] || fail "only $failed sizes were too small for the run"

failed=0
for kib in 4 12 24 36 44 52 64 80; do
    if ! on_disk_of $kib "$tool" prep char --input=$work/text --out=$small/tokens; then
        failed=$((failed + 1))
        [ -z "$(find $small -type f)" ] || fail "$kib KiB: $(find $small)"
    fi
    umount $small
done
[ $failed -gt 2 ] || fail "only $failed sizes were too small for the tokens"

# fetch asks for the room of the whole file first.
mkdir $work/from
head -c 1115394 /dev/zero | tr '\0' a >$work/from/input.txt
for kib in 1000 1200; do
    mount -t tmpfs -o size=${kib}k none $small
    code=0
    "$tool" fetch shakespeare --from=$work/from --out=$small/text >$work/log 2>&1 || code=$?
    [ $code -eq $((kib < 1100)) ] || fail "fetch on $kib KiB: $(cat $work/log)"
    [ $code -eq 0 ] || grep -q 'the disk has no room for 1115394 more bytes' $work/log || fail "$(cat $work/log)"
    umount $small
done
