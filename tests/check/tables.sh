#!/bin/sh
# docs/reference/settings.md, numerics.md and exit_codes.md list the settings, optimizers, exit codes and statuses of the
# program and its headers, and docs/start/install.md the packages of modules. The pages about code name code that exists.
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
        width = length(line)
    }
    $2 == "settings" {
        name = "`" substr($3, 3) "`"
        if ((width += 1 + length(name)) <= 160) line = line " " name
        else {
            line = line "\n  " name
            width = 2 + length(name)
        }
    }
    END { print line }' "$work/table" >"$work/defined"
awk '/^## Groups/ { on = 1; next } on && NF' "$source/docs/reference/settings.md" >"$work/listed"
[ "$(wc -l <"$work/defined")" -gt 10 ] || fail 'groups of the table'
diff "$work/listed" "$work/defined" >"$work/log" || fail 'docs/reference/settings.md: replace the lines < by the lines >'

echo '== optimizers'
awk -F '\t' '$1 == "option" && $2 == "train" && $3 == "--optimizer" { print $6 }' "$work/table" | tr ' ' '\n' | grep -vx auto >"$work/words" || true
[ "$(wc -l <"$work/words")" -ge 3 ] || fail 'words of --optimizer'
while read -r word; do
    grep -q "^| \`$word\` |" "$source/docs/reference/numerics.md" || fail "docs/reference/numerics.md has no row for the optimizer $word"
done <"$work/words"

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

echo '== code that the pages about it name'
cd "$source"
export LC_ALL=C
find src include tools tests scripts cmake examples -type f >"$work/files"
grep -v /figures/ "$work/files" | tr '\n' '\0' | xargs -0 grep -hoE '[A-Za-z_][A-Za-z0-9_]+' CMakeLists.txt | sort -u >"$work/defined"
awk '/^```/ { code = !code; next } !code' docs/inside/*.md CONTRIBUTING.md | grep -oE '`[^`]*`' | tr -d '`' >"$work/code"
grep -oE '^(lks|LKS)[A-Za-z0-9_]*|^[a-z0-9_]+\(\)' "$work/code" | tr -d '()' | sort -u >"$work/listed"
[ "$(wc -l <"$work/listed")" -gt 50 ] || fail 'names in pages'
comm -13 "$work/defined" "$work/listed" >"$work/log"
grep -xE '[a-z0-9_/]+/[a-z0-9_]+\.[a-z]+' "$work/code" | grep -v ^llmc/ | sort -u | while read -r file; do
    grep -qE "(^|/)$file\$" "$work/files" || echo "$file"
done >>"$work/log"
[ ! -s "$work/log" ] || fail 'docs/inside or CONTRIBUTING.md names code that does not exist'
