#!/bin/sh
# docs/reference/settings.md and exit_codes.md list what the program and its headers define, and
# docs/start/install.md the packages of modules.
# tables.sh SOURCE TOOL
set -eu
. "${0%/*}/../support.sh"
work_folder
source=$1 tool=$2
"$tool" help --table >"$work/table"

echo '== groups of settings, and their names'
# A command's --help=WORD has the groups of its settings in their order.
awk -F '\t' '
    $1 != "option" || $9 ~ /^another name of / { next }
    $3 == "--help" { at = split($6, word, " ") > 0 }
    $2 != "settings" && $8 != "Help" && $8 != "Options" && !(($2, $8) in seen) {
        seen[$2, $8]
        word_of[$8] = word[++at]
    }
    $2 == "settings" && $8 != group {
        if (line != "") print line
        group = $8
        line = "- **" $8 "** (`" word_of[$8] "`):"
    }
    $2 == "settings" { line = line " `" substr($3, 3) "`" }
    END { print line }' "$work/table" >"$work/defined"
awk '/^## Groups/ { on = 1; next } on && /^- / { if (line != "") print line; line = $0; next }
    on && /^  / { sub(/^ +/, ""); line = line " " $0 } END { print line }' "$source/docs/reference/settings.md" >"$work/listed"
[ "$(wc -l <"$work/defined")" -gt 5 ] || fail 'groups of the table'
diff "$work/defined" "$work/listed" >"$work/log" || fail 'docs/reference/settings.md (<: the table of settings, >: the page)'

echo '== exit codes and statuses'
{
    awk -F '\t' '$1 == "exit" { print "| `" $2 "` | " $3 " |" }' "$work/table"
    sed -n 's/^ *X(\([A-Z_]*\), \(-*[0-9]*\), "\(.*\)").*/| `LKS_\1` | \2 | \3 |/p' "$source/include/lockstep/status.h"
} >"$work/defined"
grep '^| `' "$source/docs/reference/exit_codes.md" >"$work/listed" || true
[ "$(wc -l <"$work/defined")" -gt 15 ] || fail 'statuses of the header'
diff "$work/defined" "$work/listed" >"$work/log" || fail 'docs/reference/exit_codes.md (<: the program, >: the page)'

echo '== packages of modules'
sed -n 's/^set(lks_about_\([a-z]*\) .*/lockstep-\1/p' "$source/cmake/packages.cmake" | sort >"$work/defined"
sed -n '/^## Debian packages/,/^## /p' "$source/docs/start/install.md" | grep -o '`lockstep-[a-z]*`' | tr -d '`' | sort >"$work/listed"
[ "$(wc -l <"$work/defined")" -gt 5 ] || fail 'modules of cmake/packages.cmake'
diff "$work/defined" "$work/listed" >"$work/log" || fail 'docs/start/install.md (<: cmake/packages.cmake, >: the page)'
