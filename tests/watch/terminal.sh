#!/bin/sh
# `lockstep watch --tty` in tmux: at 20, 40, 80 and 200 columns, live, and left by q.
# terminal.sh TOOL [shown]
set -eu
. "${0%/*}/../support.sh"
tool=$1
command -v tmux >/dev/null || lacks tmux 'a terminal that can be looked at: tmux'
work=$(mktemp -d)
trap 'tmux -S tmux kill-server 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" # the path of tmux's socket may have 107 bytes only
export LC_ALL=C.UTF-8 TERM=xterm

fail() {
    echo "FAILED: $*"
    cat "$work/screen"
    exit 1
}

# on_screen TEXT: wait until it is there.
on_screen() {
    n=$(patient 200)
    while :; do
        tmux -S tmux capture-pane -p -t "$pane" >"$work/screen"
        ! grep -qF -e "$1" "$work/screen" || return 0
        n=$((n - 1))
        [ $n -gt 0 ] || fail "no '$1' at $columns columns"
        sleep 0.1
    done
}

for columns in 20 40 80 200; do
    mkdir "$work/run$columns"
    metrics=$work/run$columns/metrics.jsonl
    awk 'BEGIN { print "{\"kind\":\"config\",\"n_layer\":1}\n{\"kind\":\"host\",\"world_size\":2}"
        for (i = 0; i < 300; i++) printf "{\"kind\":\"train\",\"iter\":%d,\"loss\":%.4f,\"ms\":100,\"tok_per_s\":5000,\"mfu\":0.5,\"comm_exposed_ms\":7}\n", i, 1 + 3 / (1 + i / 20) }' >"$metrics"
    pane=at$columns
    tmux -S tmux -f /dev/null new-session -d -s "$pane" -x "$columns" -y 20 "'$tool' watch --tty '$work/run$columns'; echo code \$?; sleep 1000"
    on_screen 'iter 299'
    on_screen 'loss 1.1'
    on_screen 'wait 7.0%'
    on_screen '▁▁▁'
    echo '{"kind":"train","iter":300,"loss":0.5}' >>"$metrics"
    on_screen 'loss 0.5000'
    [ -z "${2-}" ] || cat "$work/screen"
    tmux -S tmux send-keys -t "$pane" q
    on_screen 'code 0'
done
# More runs than fit, the last of which begins later: Down and Up show others.
mkdir "$work/many"
for i in 1 2 3 4 5 6 7; do cp -r "$work/run80" "$work/many/naïve$i"; done
pane=many
columns=80
tmux -S tmux new-session -d -s many -x 80 -y 12 "'$tool' watch --tty '$work/many'; echo code \$?; sleep 1000"
on_screen 'runs 1 to 4 of 7'
on_screen 'naïve1'
cp -r "$work/run80" "$work/many/naïve8"
on_screen 'runs 1 to 4 of 8'
tmux -S tmux send-keys -t many Down
on_screen 'runs 2 to 5 of 8'
tmux -S tmux send-keys -t many Up
on_screen 'runs 1 to 4 of 8'
tmux -S tmux send-keys -t many q
on_screen 'code 0'
for type in nonsense dumb; do
    tmux -S tmux new-session -d -s $type -x 200 -y 20 "TERM=$type '$tool' watch --tty '$work/run80'; echo code \$?; sleep 1000"
    pane=$type
    on_screen "the terminal's type (TERM) is unknown, or it can't move the cursor"
done
echo 'the terminal view: 20, 40, 80 and 200 columns, live, some of many runs, left by q'
