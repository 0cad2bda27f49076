# Completion for zsh, of the table that `lockstep help --table` prints.
BEGIN {
    FS = "\t"
    print "#compdef lockstep\n# Made by lockstep's build, of the settings table: commands, settings, values, recipes, runs."
}
function plain(text)
{
    gsub(/\\/, "\\\\\\\\", text)
    gsub(/\[/, "\\[", text)
    gsub(/\]/, "\\]", text)
    gsub(/:/, "\\:", text)
    gsub(/'/, "'\\''", text)
    return text
}
function action()
{
    if ($4 == "truth" || $4 == "words" || $4 == "help") return "(" plain($6) ")"
    if ($4 == "path") return "_files"
    if ($4 == "weights") return "_lockstep_weights"
    if ($4 == "dataset") return "_lockstep_datasets"
    if ($4 == "run") return "_lockstep_runs"
    if ($4 == "checkpoint") return "_lockstep_checkpoints"
    return " "
}
$1 == "command" {
    commands[++n] = $2
    about[$2] = $3
}
$1 == "usage" && $3 ~ /lockstep [a-z]+ RUN| RUN[^A-Za-z ]+$/ { takes_runs[$2] = 1 }
$1 == "word" { words[$2] = words[$2] " " $3 }
$1 == "option" && $2 != "settings" {
    optional = ($4 == "truth" || $4 == "help")
    name = ($4 == "flag") ? "" : optional ? "=-" : "="
    value = ($4 == "flag") ? "" : (optional ? "::" : ":") plain($7 == "" ? "value" : $7) ":" action()
    options[$2] = options[$2] " \\\n            '" ($4 == "help" ? "(- *)" : "*") $3 name "[" plain($9) "]" value "'"
    if ($4 == "weights") known = $6
    if ($4 != "help") settings[substr($3, 3)] = 1
    else groups[$2] = 1
}
END {
    print "_lockstep_recipes() {\n    local -a names\n    local program=${${commands[lockstep]:-lockstep}:A}"
    print "    names=(config/*.(conf|py)(N:t:r) ${program:h:h}/share/lockstep/config/*.conf(N:t:r))"
    print "    _alternative \"recipes:recipe:($names)\" 'files:file:_files -g \"*.(conf|py)(-.)\"'\n}"
    print "_lockstep_texts() { _alternative 'recipes:recipe:_lockstep_recipes' 'files:text:_files' }"
    print "_lockstep_runs() {\n    local -a runs\n    runs=(*/metrics.jsonl(N:h) */*/metrics.jsonl(N:h))"
    print "    _alternative \"runs:run:($runs)\" 'folders:folder:_files -/'\n}"
    print "_lockstep_datasets() {\n    local -a names\n    names=(data/*(N/:t))"
    print "    _alternative \"names:data set:($names)\" 'folders:folder:_files'\n}"
    print "_lockstep_weights() { _alternative 'names:model:(" known ")' 'files:file:_files' }"
    print "_lockstep_checkpoints() {\n    local run=out word\n    local -a names"
    print "    for word in $words; do [[ $word == --out[-_]dir=* ]] && run=${word#*=}; [[ -f $word/metrics.jsonl ]] && run=$word; done"
    print "    names=(best latest ${run}/ckpt-<->(N:t:s/ckpt-/))"
    print "    compadd -- ${names/#%0#(#b)(<->)/$match[1]}\n}"
    print "_lockstep() {\n    local line state\n    local -a words_of\n    typeset -A opt_args"
    print "    _arguments -C '(- *)--help[all commands]' '(- *)--version[the version]' '1:command:->command' '*::argument:->argument' && return"
    print "    case $state in\n    command)\n        words_of=("
    for (i = 1; i <= n; i++) print "            '" commands[i] ":" plain(about[commands[i]]) "'"
    print "            'help:explain a command or a setting')\n        _describe -t commands command words_of\n        ;;\n    argument)\n        case $words[1] in"
    for (i = 1; i <= n; i++) {
        c = commands[i]
        print "        " c ")\n            _arguments" (c in groups ? "" : " '(- *)--help[all settings]'") options[c] " \\"
        if (c == "run") print "            '1:program:_command_names -e' '*::argument:_normal'"
        else if (words[c] != "") print "            '1:what:(" words[c] ")' '*:recipe:_lockstep_recipes'"
        else if (c in takes_runs) print "            '*:run:_lockstep_runs'"
        else if (c == "train") print "            '*:text or recipe:_lockstep_texts'"
        else print "            '*:recipe:_lockstep_recipes'"
        print "            ;;"
    }
    printf "        help)\n            _arguments '*:word:("
    for (i = 1; i <= n; i++) printf "%s ", commands[i]
    for (name in settings) printf "%s ", name
    print ")'\n            ;;\n        esac\n        ;;\n    esac\n}\n_lockstep \"$@\""
}
