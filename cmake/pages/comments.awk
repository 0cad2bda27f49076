#!/usr/bin/awk -f
# Our comments as Doxygen's: one that begins a line belongs to what follows it, one behind code to that code.
# The first line of a file, "lockstep/NAME.h - what it is", becomes the file's description.
FNR == 1 && /^\/\* lockstep\// {
    name = $2
    sub(/^\/\* [^ ]* - /, "")
    print "/** @file " name "\n * " $0
    next
}
/^ *\/\* ---/ { print; next } # a heading between parts
/^ *\/\*/ { sub(/\/\*/, "/**") }
/[;,{]  *\/\* / { sub(/\/\* /, "/**< ") }
{ print }
