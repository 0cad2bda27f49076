#!/bin/sh
# examples/cluster/lockstep@.service: systemd accepts it, and its command starts, stops with a checkpoint and
# goes on. service.sh SOURCE TOOL.
set -eu
. "${0%/*}/../support.sh"
source=$1 tool=$2
work_folder
command -v systemd-analyze >/dev/null || lacks systemd 'it has to accept the unit'
mkdir "$work/bin"
ln -s "$tool" "$work/bin/lockstep" # no path with blanks
sed "s,exec lockstep,exec $work/bin/lockstep,; s,/srv/lockstep/%i,$work," "$source/examples/cluster/lockstep@.service" >"$work/lockstep@x.service"
systemd-analyze verify --man=no "$work/lockstep@x.service" >"$work/verify.log" 2>&1 || fail 'systemd refuses the unit'
! grep "lockstep@x" "$work/verify.log" || fail 'systemd warns of the unit'

# What systemd would execute.
command=$(sed -n "s/^ExecStart=\/bin\/sh -c '\(.*\)'\$/\1/p" "$work/lockstep@x.service" | sed 's/\$\$/$/g')
[ -n "$command" ] || fail 'there is no command'
cd "$work"
"$tool" prep char --input="$source/README.md" --out=data >prep.log 2>&1 || fail prep
recipe() { # MAX_ITERS
    printf '%s\n' 'dataset = data' 'n_layer = 1' 'n_head = 2' 'n_embd = 16' 'block_size = 16' 'batch_size = 2' 'threads = 1' \
        'gradient_accumulation_steps = 4' 'eval_interval = 20' 'eval_iters = 1' "max_iters = $1" >recipe.conf
}
recipe 100000000
sh -c "$command" >run.log 2>&1 &
await 'no checkpoint' [ -e out/latest ]
kill -TERM $!
code=0
wait $! || code=$?
[ $code = "$(sed -n 's/^SuccessExitStatus=//p' "lockstep@x.service")" ] || fail "exit code $code after SIGTERM"
at=$(readlink out/latest | sed 's/ckpt-0*//')
recipe $((at + 5))
timeout "$(patient 60)" sh -c "$command" >again.log 2>&1 || fail 'it does not go on'
[ "$(readlink out/latest | sed 's/ckpt-0*//')" -gt "$at" ] || fail 'it has not gone on'
