#!/bin/sh
# Man pages and completions that the build makes: pages.sh SOURCE BUILD. man and mandoc read the pages
# without a warning; bash, zsh and fish are asked what they would complete.
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2
work_folder
plain_build "$build" 'builds with a sanitizer make no pages'
pages=$build/pages lockstep=$build/tools/lockstep
for need in man mandoc bash zsh fish; do
    command -v $need >/dev/null || lacks $need "there is no $need"
done

echo '== made once more, they are those of the build'
date=$(gzip -dc "$pages/man/man1/lockstep.1.gz" | sed -n 's/^\.TH "*[^ "]*"* 1 "\([^"]*\)".*/\1/p')
[ -n "$date" ] || fail 'lockstep(1) has no date'
mkdir -p "$work/pages"
"$lockstep" help --table >"$work/pages/table"
"$source/cmake/pages/make.sh" "$source/docs/reference/formats.md" "$date" "$work/pages"
diff -r "$pages" "$work/pages" >"$work/log" || fail "the program has other pages than the build made of it; if only a part was built: cmake --build $build"

echo '== each command has a page, each setting a place in it'
"$lockstep" help --table >"$work/table"
cut -f 1 "$work/table" | sort -u | tr '\n' ' ' | grep -qx 'command exit option usage version word ' || fail 'rows of the table'
tab=$(printf '\t')
grep -q "^option${tab}train${tab}--init_from${tab}weights${tab}scratch${tab}scratch resume gpt2 gpt2-medium gpt2-large gpt2-xl${tab}" \
    "$work/table" || fail 'the table lacks a model of --init_from'
export LC_ALL=C.UTF-8 MANWIDTH=100
for page in "$pages"/man/man*/*.gz; do
    name=${page##*/}
    gzip -dc "$page" >"$work/page"
    man --warnings -l "$page" 2>"$work/warnings" >"$work/text" || fail "man can't show $name"
    mandoc -Tlint -W warning <"$work/page" >>"$work/warnings" 2>&1 || true
    [ ! -s "$work/warnings" ] || fail "$name: $(head -n 5 "$work/warnings")"
done
[ "$(find "$pages/man/man1" -name 'lockstep-*.1.gz' | wc -l)" = "$(grep -c '^command' "$work/table")" ] || fail 'pages of commands'
text_of() {
    man -l "$pages/man/man$2/$1.$2.gz" | tr -s ' \n' ' ' | sed 's/‐ //g'
}
text_of lockstep-train 1 >"$work/text"
[ "$("$lockstep" train --help | wc -l)" -le 60 ] || fail 'the short help of train has over 60 lines'
"$lockstep" train --help=all | sed -n 's/^  \(--[a-z0-9_]*\)=.*/\1/p' >"$work/settings"
[ "$(wc -l <"$work/settings")" -gt 50 ] || fail 'settings of train'
while read -r setting; do
    grep -qE -- " $setting(\[|=)" "$work/text" || fail "lockstep-train(1) lacks $setting"
done <"$work/settings"
for part in 'train a GPT on one or more ranks' 'lockstep train \[config/NAME.conf\]' 'SYNOPSIS lockstep train TEXT' \
    'highest learning rate (a number of at least 0 and at most 1,000,000)' '128+n ended by signal n' 'lockstep-settings(5)' \
    'SIGHUP stop the run: it discards an unfinished step' '--help\[=GROUP\] explain' 'Groups: all, [a-z, ]*golf'; do
    grep -q -- "$part" "$work/text" || fail "lockstep-train(1) lacks: $part"
done
text_of lockstep-run 1 | grep -q -- '--nproc-per-node=1 number of ranks to start' || fail 'lockstep-run(1)'
text_of lockstep-formats 5 >"$work/text"
for part in '20240520 1; uint16' 'CHECKPOINTS: OUT/CKPT-%08D' 'object with a kind'; do
    grep -q -- "$part" "$work/text" || fail "lockstep-formats(5) lacks: $part"
done
text_of lockstep-settings 5 | grep -q -- '--dtype=auto precision to compute in' || fail 'lockstep-settings(5)'

# What all shells are asked, in a folder with runs, data and recipes: LINE = words that must be among
# the answers ! words that must not.
mkdir -p "$work/in/runs/small/ckpt-00000010" "$work/in/runs/small/ckpt-00000300" "$work/in/data/mine" "$work/in/config" "$work/in/runs/other"
: >"$work/in/runs/small/metrics.jsonl"
: >"$work/in/config/own.conf"
: >"$work/in/my.txt"
mkdir -p "$work/opt/bin" "$work/opt/share/lockstep"
cp -r "$source/config" "$work/opt/share/lockstep/config"
ln "$lockstep" "$work/opt/bin/lockstep" 2>/dev/null || cp "$lockstep" "$work/opt/bin/lockstep"
export PATH="$work/opt/bin:$PATH"
cat >"$work/asked" <<'END'
lockstep tr = train ! prep
lockstep  = train prep run bench help !
lockstep train --n_la = --n_layer ! --n_head
lockstep run --nproc = --nproc-per-node ! --n_layer
lockstep train --ra = --ranks ! --n_layer
lockstep resume runs/small --ra = --ranks ! --n_layer
lockstep train --on_nan= = stop skip rollback ! float32
lockstep train --on_nan=r = rollback ! stop
lockstep train --on_nan r = rollback ! stop
lockstep train --dtype bf = bfloat16 ! float32
lockstep train --optimizer=m = muon ! adamw
lockstep train quick = quickstart ! own
lockstep train my.t = my.txt ! own
lockstep train ow = own ! quickstart
lockstep sample --out_dir=runs/ = runs/small ! runs/other
lockstep sample runs/ = runs/small ! runs/other quickstart
lockstep resume ru = runs/small ! runs/other own
lockstep eval runs/small --checkpoint= = best latest 10 300 !
lockstep watch runs/ = runs/small ! runs/other quickstart
lockstep report runs/small runs/sm = runs/small ! runs/other
lockstep diff runs/small runs/sm = runs/small ! runs/other
lockstep plot --axis=time ru = runs/small ! runs/other own
lockstep train --exec_on=be = best: ! end:
lockstep sample --out_dir=runs/small --which= = best latest 10 300 !
lockstep train --dataset=mi = mine !
lockstep train --init_from=gpt2-m = gpt2-medium ! scratch
lockstep bench pe = peak ! step
lockstep prep ch = char ! gpt2
lockstep help on_na = on_nan ! n_layer
lockstep run --nproc-per-node=2 lockstep train --on_nan=r = rollback !
lockstep train --keep= = all !
lockstep train --help= = all golf cluster gpu logging !
lockstep train --help=go = golf ! gpu all
lockstep plan --hel = --help !
lockstep train --quux= = ! stop
END
sed 's/ = .*//' "$work/asked" >"$work/lines"

# judge SHELL: $work/given has a line `=` and then the answers for each of the lines.
judge() {
    n=0
    while IFS= read -r row <&3; do
        n=$((n + 1)) line=${row%% = *} right=${row#* = }
        awk -v n=$n '$0 == "=" { at++; next } at == n' "$work/given" >"$work/answers"
        # fish gives no completion of a program behind another's options.
        case $1-$line in fish*' lockstep train'*) continue ;; esac
        for word in ${right%!*}; do
            grep -qE -- "(^|[=/])${word}[=/]?$" "$work/answers" ||
                fail "$1: \"$line\" lacks $word: $(tr '\n' ' ' <"$work/answers")"
        done
        for word in ${right#*!}; do
            ! grep -qE -- "(^|=)$word\$" "$work/answers" ||
                fail "$1: \"$line\" has $word: $(tr '\n' ' ' <"$work/answers")"
        done
    done 3<"$work/asked"
}
cd "$work/in"

echo '== bash'
cat >"$work/ask.bash" <<'END'
. "$1"
while IFS= read -r line; do
    COMP_LINE=$line COMP_POINT=${#line}
    _lockstep
    printf '%s\n' = "${COMPREPLY[@]}"
done
END
bash --norc "$work/ask.bash" "$pages/bash/lockstep" <"$work/lines" >"$work/given" 2>"$work/errors" || fail 'bash'
! grep -v 'compopt: not currently' "$work/errors" || fail 'bash reports errors'
judge bash

echo '== fish'
export HOME="$work" XDG_CONFIG_HOME="$work/fish" XDG_DATA_HOME="$work/fish"
cat >"$work/ask.fish" <<'END'
source $argv[1]
while read -l line
    echo =
    complete -C "$line"
end
END
timeout "$(patient 60)" fish --no-config "$work/ask.fish" "$pages/fish/lockstep.fish" <"$work/lines" >"$work/raw" || fail fish
cut -f 1 "$work/raw" >"$work/given"
judge fish

echo '== zsh'
cat >"$work/ask.zsh" <<'END'
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PROMPT=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D"
zpty -w z "LISTMAX=10000; setopt no_beep no_always_last_prompt; unsetopt prompt_sp prompt_cr"
# Print every match in a line of its own, too.
zpty -w z 'compadd() { local -a out; builtin compadd -O out "$@"; print -rl -- "" "@${^out[@]}"; builtin compadd "$@" }'
# A line may be sent once the prompt is there: the terminal is zsh's own then, with C-u and all.
zpty -w z 'bindkey "^I" complete-word; PROMPT="AS""K>"'
zpty -r z line '*ASK>*'
while IFS= read -r asked; do
    print -r -- =
    zpty -w -n z "$asked"$'\t'
    zpty -w -n z $'\C-u''echo DO""NE'$'\n'
    zpty -r z line '*DONE*ASK>*'
    print -r -- $line
done
zpty -d z
END
timeout "$(patient 60)" zsh -f "$work/ask.zsh" "$pages/zsh" <"$work/lines" >"$work/raw" 2>&1 || fail zsh
tr -d '\r' <"$work/raw" | sed -n 's/^@//p; /^=$/p' >"$work/given"
judge zsh
echo 'all as it should be'
