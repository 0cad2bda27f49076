# shellcheck shell=bash
# Completion of lockstep's commands for bash: commands, settings, values, recipes, runs.
# _lockstep_table prints what stands at the end, which the build makes of the settings table.

# _lockstep_kind COMMAND SETTING: its kind and its words. Empty: no such setting.
_lockstep_kind() {
    local name=${2//-/_} command option kind words
    while IFS='|' read -r command option kind words; do
        [[ $command == "$1" && ${option//-/_} == "$name" ]] || continue
        printf '%s %s\n' "$kind" "$words"
        return
    done < <(_lockstep_table)
}

# _lockstep_options COMMAND: all of them; those with a value end in =.
_lockstep_options() {
    local command option kind words
    while IFS='|' read -r command option kind words; do
        [[ $command == "$1" && -n $option ]] || continue
        case $kind in
        flag | truth | help) printf '%s\n' "$option" ;;
        *) printf '%s=\n' "$option" ;;
        esac
    done < <(_lockstep_table)
}

# _lockstep_words COMMAND: the words that it begins with.
_lockstep_words() {
    local command option kind words
    while IFS='|' read -r command option kind words; do
        [[ $command == "$1" && $kind == word ]] && printf '%s\n' "$words"
    done < <(_lockstep_table)
}

# _lockstep_takes_runs COMMAND: are its words folders of runs?
_lockstep_takes_runs() {
    _lockstep_table | grep -qxF "$1||runs|"
}

# _lockstep_recipes: names of recipes in config and of those that are installed.
_lockstep_recipes() {
    local program file
    program=$(type -P lockstep) && program=$(readlink -f -- "$program")
    for file in config/*.conf config/*.py "${program%/*/*}"/share/lockstep/config/*.conf; do
        [[ -f $file ]] || continue
        file=${file##*/}
        printf '%s\n' "${file%.*}"
    done
}

# _lockstep_runs BEGINNING: folders of runs that begin so; without any, all folders.
_lockstep_runs() {
    local folder found=
    for folder in "$1"*/ "$1"*/*/; do
        [[ -f ${folder}metrics.jsonl ]] || continue
        printf '%s\n' "${folder%/}"
        found=yes
    done
    [[ -n $found ]] || compgen -d -- "$1"
}

# _lockstep_checkpoints WORD...: of the run that the words name.
_lockstep_checkpoints() {
    local run=out folder before=
    for folder; do
        [[ ${before//-/_} != __out_dir ]] || run=$folder
        [[ ${folder//-/_} != __out_dir=* ]] || run=${folder#*=}
        [[ ! -f $folder/metrics.jsonl ]] || run=$folder
        before=$folder
    done
    printf '%s\n' best latest
    for folder in "$run"/ckpt-*/; do
        folder=${folder%/} folder=${folder##*-}
        [[ $folder != *[!0-9]* ]] && printf '%d\n' "$((10#$folder))"
    done
}

# _lockstep_values COMMAND SETTING BEGINNING WORD...: what may stand behind it.
_lockstep_values() {
    local command=$1 option=$2 begin=$3 kind words
    shift 3
    read -r kind words < <(_lockstep_kind "$command" "$option")
    case $kind in
    truth | words | help) compgen -W "$words" -- "$begin" ;;
    path) compgen -f -- "$begin" ;;
    weights) compgen -W "$words" -- "$begin"; compgen -f -- "$begin" ;;
    dataset) compgen -d -- "$begin"; (cd data 2>/dev/null && compgen -d -- "$begin") ;;
    run) _lockstep_runs "$begin" ;;
    checkpoint) compgen -W "$(_lockstep_checkpoints "$@")" -- "$begin" ;;
    esac
}

_lockstep() {
    # bash cuts words at = and :, so they are read from the line itself.
    local line=${COMP_LINE:0:COMP_POINT} cur last command begun='' i replies=() words
    read -ra words <<<"$line"
    cur=
    [[ $line == *[[:blank:]] ]] || { cur=${words[-1]}; unset 'words[-1]'; }
    words=("${words[@]:1}")
    # `lockstep run … lockstep COMMAND` completes COMMAND.
    for ((i = ${#words[@]} - 1; i > 0; i--)); do
        [[ ${words[0]} == run && ${words[i]##*/} == lockstep ]] && words=("${words[@]:i + 1}") && break
    done
    command=${words[0]-} last=
    [[ ${#words[@]} -eq 0 ]] || last=${words[-1]}
    COMPREPLY=()
    for ((i = 1; i < ${#words[@]}; i++)); do
        [[ ${words[i]} == -* ]] || begun=yes
    done
    if [[ ${#words[@]} -eq 0 ]]; then
        mapfile -t replies < <(compgen -W "$(_lockstep_words '') help --help --version" -- "$cur")
    elif [[ $command == help ]]; then
        mapfile -t replies < <(compgen -W "$(_lockstep_words '') $(_lockstep_table | sed -n 's/^[a-z]*|--\([^|]*\).*/\1/p')" -- "$cur")
    elif [[ $cur == --*=* ]]; then
        mapfile -t replies < <(_lockstep_values "$command" "${cur%%=*}" "${cur#*=}" "${words[@]}")
        compopt -o filenames 2>/dev/null
        [[ $COMP_WORDBREAKS == *=* ]] || replies=("${replies[@]/#/${cur%%=*}=}")
    elif [[ $cur == -* ]]; then
        mapfile -t replies < <(compgen -W "$(_lockstep_options "$command") --help" -- "$cur")
        [[ ${#replies[@]} -ne 1 || ${replies[0]} != *= ]] || compopt -o nospace 2>/dev/null
    elif [[ $last == --* && $last != *=* && $(_lockstep_kind "$command" "$last") != @(|flag|truth|help)\ * ]]; then
        mapfile -t replies < <(_lockstep_values "$command" "$last" "$cur" "${words[@]}")
        compopt -o filenames 2>/dev/null
    elif _lockstep_takes_runs "$command"; then
        mapfile -t replies < <(_lockstep_runs "$cur")
        compopt -o filenames 2>/dev/null
    elif [[ $command == run ]]; then
        mapfile -t replies < <([[ -n $begun ]] || compgen -c -- "$cur"; compgen -f -- "$cur")
        compopt -o filenames 2>/dev/null
    else
        [[ -n $begun ]] || mapfile -t replies < <(compgen -W "$(_lockstep_words "$command")" -- "$cur")
        [[ ${#replies[@]} -ne 0 || -z $(_lockstep_words "$command") || -n $begun ]] || return 0
        [[ ${#replies[@]} -ne 0 ]] || {
            mapfile -t replies < <(compgen -W "$(_lockstep_recipes)" -- "$cur"; compgen -f -- "$cur")
            compopt -o filenames 2>/dev/null
        }
    fi
    mapfile -t COMPREPLY < <(((${#replies[@]} == 0)) || printf '%s\n' "${replies[@]}" | LC_ALL=C sort -u)
}
complete -F _lockstep lockstep
