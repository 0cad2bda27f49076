#!/bin/sh
# scripts/prove.sh reports correctly that all runs are the same, or that one differs, and shows its progress.
# prove.sh SOURCE TOOL
set -eu
. "${0%/*}/../support.sh"
source=$1 tool=$2
work_folder
prove="$source/scripts/prove.sh"

# Its runs with a smaller model. The one that is to be killed after iteration 40 takes 2.5 s more at about
# iteration 60, so that it is not over by then.
cat >"$work/small" <<END
#!/bin/sh
case "\$*" in
train*--init_from=resume*) ;;
train*--out_dir=*/killed*) export LOCKSTEP_FAULT=read:550:slower ;;
train*) ;;
*) exec '$tool' "\$@" ;;
esac
exec '$tool' "\$@" --n_embd=32 --n_layer=1 --block_size=16
END
chmod +x "$work/small"
"$prove" --lockstep="$work/small" --out="$work/out" >"$work/log" 2>&1 || fail "exit code $?"
[ "$(tail -n 1 "$work/log")" = 'All runs are the same, byte for byte.' ] || fail 'it does not say so'
levels=$(grep -cE '^2 ranks, AVX2 only' "$work/log" || :)
[ "$(sed -n '2,$s/.*  \([0-9a-f]\{12\}\.\.\.  *[0-9a-f]\{12\}\.\.\.\)$/\1/p' "$work/log" | sort | uniq -c | awk '{ print $1 }')" = $((5 + levels)) ] ||
    fail 'not equal rows of 1, 2, 4 and 8 ranks, of ranks that were killed, and of kernel levels'

# The same with a program that trains differently on 4 ranks, and a shorter run.
cat >"$work/other" <<END
#!/bin/sh
case "\$*" in
train*--init_from=resume*) ;;
train*--out_dir=*/killed*) export LOCKSTEP_FAULT=read:550:slower ;;
esac
case "\$*" in
*--nproc_per_node=4*) exec '$tool' "\$@" --n_embd=16 --n_layer=1 --block_size=8 --seed=7 ;;
*) exec '$tool' "\$@" --n_embd=16 --n_layer=1 --block_size=8 ;;
esac
END
chmod +x "$work/other"
code=0
command="'$prove' --lockstep='$work/other' --dataset='$work/out/data' --out='$work/out'"
if script -qec true /dev/null >/dev/null 2>&1; then
    progress_period=0.1 script -qefc "$command" "$work/log" </dev/null >/dev/null || code=$?
else
    sh -c "$command" >"$work/log" 2>&1 || code=$?
fi
[ $code -eq 1 ] || fail "exit code $code for runs that differ"
grep -q 'not the same' "$work/log" || fail 'it does not say that runs differ'
# On a terminal it shows which run is under way, if that lasts longer than progress_period.
! script -qec true /dev/null >/dev/null 2>&1 || grep -q 'run [1-7] of [67], on [1-8] ranks*, [0-9]* s' "$work/log" ||
    fail 'it shows no progress'
