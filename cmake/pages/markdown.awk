# A page of docs/ as a man page: headings, paragraphs, lists, tables, code and links, as our pages have
# them.   awk -v page=lockstep-formats -v section=5 -v about="…" -v version=0.1.0 \
#         -v date=2026-11-22 -f markdown.awk PAGE.md
BEGIN {
    print ".TH " toupper(page) " " section " \"" date "\" \"lockstep " version "\" \"lockstep\""
    name = page
    gsub(/-/, "\\-", name)
    print ".SH NAME\n" name " \\- " about
}

function plain(text)
{
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    gsub(/'/, "\\(aq", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/~/, "\\(ti", text)
    return text
}

# Code in bold, emphasis in italics, a link as its text.
function inline(text,    out, n, parts, i)
{
    n = split(text, parts, "`")
    for (i = 1; i <= n; i++) {
        if (i % 2 == 0) {
            out = out "\\fB" plain(parts[i]) "\\fR"
            continue
        }
        while (match(parts[i], /\]\([^)]*\)/))
            parts[i] = substr(parts[i], 1, RSTART - 1) substr(parts[i], RSTART + RLENGTH)
        gsub(/\[/, "", parts[i])
        parts[i] = plain(parts[i])
        gsub(/\*\*/, "", parts[i])
        gsub(/\*/, "", parts[i])
        out = out parts[i]
    }
    if (out ~ /^[.]/) out = "\\&" out
    return out
}

/^```/ {
    code = !code
    print code ? (headed ? "" : ".PP\n") ".nf\n.RS 4" : ".RE\n.fi"
    headed = 0
    next
}
code {
    text = plain($0)
    gsub(/`/, "\\(ga", text)
    print (text ~ /^[.]/ ? "\\&" : "") text
    next
}
/^##? / {
    level = index($0, " ")
    gsub(/^#+ |`/, "")
    print ".SH " (level == 2 ? "DESCRIPTION" : plain(toupper($0)))
    headed = 1
    next
}
/^###/ {
    gsub(/^#+ |`/, "")
    print ".SS " plain($0)
    headed = 1
    next
}
/^\|[ :|-]+\|$/ { next } # the line below a table's head
/^\|/ {
    # A row: its first cell as the tag, the rest as the text.
    gsub(/\\\|/, "\001")
    n = split($0, cell, "|")
    for (i = 2; i < n; i++) {
        gsub(/^ +| +$/, "", cell[i])
        gsub(/\001/, "|", cell[i])
    }
    print ".TP\n" (cell[2] == "" ? "\\ " : inline(cell[2]))
    text = ""
    for (i = 3; i < n; i++)
        if (cell[i] != "") text = text (text == "" ? "" : "; ") inline(cell[i])
    print text == "" ? "\\ " : text
    table = 1
    headed = 0
    next
}
/^ *[-*] / { sub(/^ *[-*] /, ""); headed = 0; print ".IP \\(bu 2\n" inline($0); next }
/^ *[0-9]+\. / { headed = 0; text = $0; sub(/^ */, "", text); n = text; sub(/ .*/, "", n); sub(/^[0-9]+\. /, "", text); print ".IP " n " 4\n" inline(text); next }
/^ *$/ { blank = 1; next }
{
    sub(/^ +/, "")
    if ((blank || table) && !headed) print ".PP"
    blank = table = headed = 0
    print inline($0)
}
