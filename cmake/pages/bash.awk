# The table for bash.sh: COMMAND|OPTION|KIND|WORDS
BEGIN { FS = "\t"; print "\n_lockstep_table() {\n    cat <<'END'" }
$1 == "command" { print "||word|" $2 }
$1 == "usage" && $3 ~ /lockstep [a-z]+ RUN| RUN[^A-Za-z ]+$/ && !told[$2]++ { print $2 "||runs|" }
$1 == "word" { print $2 "||word|" $3 }
$1 == "option" && $2 != "settings" { print $2 "|" $3 "|" $4 "|" $6 }
END { print "END\n}" }
