# A man page of the table that `lockstep help --table` prints (tools/table.h):
#     awk -v date=2026-11-22 -v page=lockstep | lockstep-COMMAND | lockstep-settings -f man.awk TABLE
BEGIN {
    FS = "\t"
    command = page
    sub(/^lockstep-?/, "", command)
}

# Text as roff reads it.
function plain(text)
{
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    gsub(/`/, "\\(ga", text)
    gsub(/'/, "\\(aq", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/~/, "\\(ti", text)
    if (text ~ /^[.]/) text = "\\&" text
    return text
}

function section(title)
{
    if (filled == "no") print ".fi"
    filled = "yes"
    print ".SH " toupper(title)
}

# A line of a usage text. A line that begins with a blank is printed unchanged.
function line(text)
{
    if (text == "") {
        gap = 1
        return
    }
    if (text ~ /^ /) {
        if (filled != "no") print ".PP\n.nf"
        else if (gap) print ""
        filled = "no"
    } else {
        if (filled == "no") print ".fi\n.PP"
        else if (gap) print ".PP"
        filled = "yes"
    }
    gap = 0
    print plain(text)
}

function option(    shown, preset)
{
    preset = $5
    shown = "\\fB" plain($3) "\\fR"
    if ($4 == "help") shown = shown "[=\\fIGROUP\\fR]"
    else if ($4 == "truth") shown = shown "[=\\fItrue\\fR|\\fIfalse\\fR]"
    else if ($4 == "value" && preset == "") shown = shown "=\\fITEXT\\fR"
    else if ($4 == "path" && preset == "") shown = shown "=\\fIPATH\\fR"
    else if ($4 == "checkpoint") shown = shown "=\\fICHECKPOINT\\fR"
    else if (length(preset) > 40) shown = shown "=\\fITEXT\\fR" # no line has room for it
    else if ($4 != "flag") shown = shown "=\\fI" plain(preset) "\\fR"
    print ".TP\n" shown
    print plain($9) ($7 != "" ? " (" plain($7) ")" : "") "."
    if ($4 == "truth") print "Default: " preset "."
    if ($4 == "help") {
        gsub(/ /, ", ", $6)
        print "Groups: " plain($6) "."
    }
    if (length(preset) > 40) {
        preset = plain(preset)
        gsub(/,/, ",\\:", preset) # it may be broken there
        print "Default: \\fI" preset "\\fR."
    }
}

$1 == "version" {
    print ".TH " toupper(plain(page)) " " (page == "lockstep-settings" ? 5 : 1) " \"" date "\" \"lockstep " $2 "\" \"lockstep\""
    section("Name")
}
$1 == "command" {
    commands[++n_commands] = $2
    about[$2] = $3
}
$1 == "exit" {
    codes[++n_codes] = $2
    meaning[$2] = $3
}
# The first usage line comes when all of the above is known.
$1 == "usage" && !begun {
    begun = 1
    if (command == "") {
        print "lockstep \\- data\\-parallel training of GPT language models"
        section("Synopsis")
        print "\\fBlockstep\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"
        section("Description")
        print "Trains GPT language models on one or many processes (ranks) and hosts. A run has the same bytes on any number of ranks and threads."
        print "Each command has its own page. \\fBlockstep help\\fR \\fISETTING\\fR explains one setting."
        section("Commands")
        for (i = 1; i <= n_commands; i++)
            print ".TP\n\\fBlockstep " commands[i] "\\fR\n" plain(about[commands[i]]) "."
    } else if (command == "settings") {
        print "lockstep-settings \\- settings of lockstep, and recipes"
        section("Description")
        print "A setting is written \\fB\\-\\-key=value\\fR on the command line, \\(aq\\-\\(aq or \\(aq_\\(aq within its name."
        print "A true/false setting without a value is true."
        print "A recipe, \\fBconfig/\\fINAME\\fB.conf\\fR, has a line \\fBkey = value\\fR for each setting;"
        print "texts may be in quotes, numbers may be products such as 5 * 8, and a # begins a comment."
        print "nanoGPT\\(aqs own config files (.py) are read, too; nothing in them is run."
        print "A command accepts a path or a name of a recipe: \\fBlockstep train quickstart\\fR reads"
        print "config/quickstart.conf of this folder or, if there is none, the installed one."
        print "The command line wins over recipes, these win over a checkpoint, and that over defaults."
    } else {
        print page " \\- " plain(about[command])
        section("Synopsis")
        print ".nf"
        filled = "no"
    }
}
$1 == "usage" && $2 == command {
    if (!described && $3 == "") {
        described = 1
        section("Description")
    } else if (!described) {
        text = $3
        sub(/^(Usage: |       )/, "", text)
        print plain(text)
    } else {
        line($3)
    }
}
$1 == "option" && $2 == command {
    if ($8 != group) section($8)
    group = $8
    option()
}
END {
    if (command == "train" || command == "resume") {
        section("Signals")
        print "SIGINT (Ctrl\\-C), SIGTERM and SIGHUP stop the run: it discards an unfinished step or evaluation,"
        print "saves the state before it, and exits with 128 + the signal\\(aqs number."
        print "A second signal ends the run at once. While it saves, that takes a third signal."
        print "SIGUSR1 and SIGUSR2 write a checkpoint, and the run continues."
    }
    if (command != "settings") {
        section("Exit status")
        for (i = 1; i <= n_codes; i++)
            print ".TP\n" plain(codes[i]) "\n" plain(meaning[codes[i]]) "."
    }
    if (command == "") {
        section("Environment")
        print ".TP\n\\fBLOCKSTEP_CPU\\fR\na kernel level to use instead of the machine\\(aqs best (lockstep info names it)."
        print ".TP\n\\fBLOCKSTEP_MODULES\\fR\na folder that is searched for modules first."
        print ".TP\n\\fBLOCKSTEP_TOKEN\\fR\nthe secret that the nodes of a job share."
        section("Files")
        print ".TP\n\\fIshare/lockstep/config\\fR\ninstalled recipes, next to the program\\(aqs folder."
        print ".TP\n\\fIshare/doc/lockstep\\fR\nall pages, and examples."
    }
    section("See also")
    if (command != "") printf "\\fBlockstep\\fR(1),\n"
    for (i = 1; i <= n_commands; i++)
        if (commands[i] != command) printf "\\fBlockstep\\-%s\\fR(1),\n", commands[i]
    print (command == "settings" ? "" : "\\fBlockstep\\-settings\\fR(5),\n") "\\fBlockstep\\-formats\\fR(5)"
}
