# Completion for fish, of the table that `lockstep help --table` prints.
BEGIN {
    FS = "\t"
    print "# Made by lockstep's build, of the settings table: commands, settings, values, recipes, runs."
    print "function __lockstep_recipes\n    set -l program (realpath (command -s lockstep; or echo lockstep) 2>/dev/null)"
    print "    for file in config/*.conf config/*.py (dirname (dirname $program))/share/lockstep/config/*.conf"
    print "        string replace -r '.*/(.*)\\.[a-z]*$' '$1' -- $file\n    end | sort -u\nend"
    print "function __lockstep_runs\n    for file in */metrics.jsonl */*/metrics.jsonl\n        dirname $file\n    end\nend"
    print "function __lockstep_checkpoints\n    printf '%s\\n' best latest"
    print "    set -l run (string match -r -- '--out[-_]dir[= ]([^ ]*)' (commandline -p))[2]"
    print "    for word in (commandline -opc)\n        test -f $word/metrics.jsonl; and set run $word\n    end"
    print "    test -n \"$run\"; or set run out"
    print "    for folder in $run/ckpt-*\n        string replace -r '.*/ckpt-0*([0-9])' '$1' -- $folder\n    end\nend"
    print "complete -c lockstep -f"
    print "complete -c lockstep -n __fish_use_subcommand -l help -d 'all commands'"
    print "complete -c lockstep -n __fish_use_subcommand -l version -d 'the version'"
    print "complete -c lockstep -n __fish_use_subcommand -a help -d 'explain a command or a setting'"
}
function plain(text)
{
    gsub(/\\/, "\\\\", text)
    gsub(/'/, "\\'", text)
    return "'" text "'"
}
function seen(command) { return "complete -c lockstep -n '__fish_seen_subcommand_from " command "'" }
$1 == "command" {
    print "complete -c lockstep -n __fish_use_subcommand -a " $2 " -d " plain($3)
    print seen("help") " -a " $2
    if ($2 == "run") print seen($2) " -F -a '(__fish_complete_command)'"
    else words_of[$2] = "(__lockstep_recipes)"
    if ($2 == "train") print seen($2) " -F"
}
$1 == "usage" && $3 ~ /lockstep [a-z]+ RUN| RUN[^A-Za-z ]+$/ { words_of[$2] = "(__lockstep_runs)" }
$1 == "word" { print seen($2) " -a " $3 }
$1 == "option" && $2 != "settings" {
    rest = " -d " plain($9)
    if ($4 == "help") rest = rest " -fa " plain($6)
    if ($4 == "truth") rest = rest " -a 'true false'"
    if ($4 == "value") rest = rest " -x"
    if ($4 == "words") rest = rest " -xa " plain($6)
    if ($4 == "path" || $4 == "dataset") rest = rest " -rF"
    if ($4 == "dataset") rest = rest " -a '(path basename data/* 2>/dev/null)'"
    if ($4 == "weights") rest = rest " -rF -a " plain($6)
    if ($4 == "run") rest = rest " -rF -a '(__lockstep_runs)'"
    if ($4 == "checkpoint") rest = rest " -xa '(__lockstep_checkpoints)'"
    print seen($2) " -l " substr($3, 3) rest
    if ($3 != "--help" && !(substr($3, 3) in told)) print seen("help") " -a " substr($3, 3) " -d " plain($9)
    told[substr($3, 3)] = 1
}
END { for (command in words_of) print seen(command) " -a '" words_of[command] "'" }
