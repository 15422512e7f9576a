#!/bin/sh
# Make the manual page: the frame TEMPLATE, with the commands and options that the program's help prints.
#   make.sh EBB TEMPLATE OUTPUT
set -eu

ebb=$1 template=$2 output=$3

# Help text to troff. A line of options or of a list is "  TERM  TEXT"; deeper lines carry the text on.
# shellcheck disable=SC2016 # awk's own
troff='
function plain(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.\047]/) text = "\\&" text
    return text
}
/^usage: / { print ".PP\n.nf"; usage = 1; sub(/^usage: /, "") }
usage && /^$/ { print ".fi"; usage = 0 }
usage { sub(/^ +/, ""); print ".B " plain($0); next }
/^$/ { print ".PP"; listed = 0; next }
/^options:$/ { print "Options:"; next }
/^  (    )?[^ ]/ && (!listed || !/^      /|| /^      --/) {
    sub(/^ +/, "")
    at = match($0, /  +/)
    term = at ? substr($0, 1, at - 1) : $0
    text = at ? substr($0, at + RLENGTH) : ""
    if (!at && term ~ /^-/ && match(term, /^(-., )?--[^ ]+( [^ ]+)? /)) { # an option too long for its column
        text = substr(term, RLENGTH + 1)
        term = substr(term, 1, RLENGTH - 1)
    }
    print ".TP\n.B " plain(term)
    if (text != "") print plain(text)
    listed = 1
    next
}
{
    if (listed && !/^ /) { print ".PP"; listed = 0 }
    sub(/^ +/, "")
    print plain($0)
}'

version=$("$ebb" --version)
tmp=$output.tmp
trap 'rm -f "$tmp"' EXIT
for command in $("$ebb" help | awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on && $1 != "help" { print $1 }'); do
    printf '.SS ebb %s\n' "$command"
    "$ebb" help "$command" | awk "$troff"
done >"$tmp"
sed -e "s/@VERSION@/${version#ebb }/" -e "/^@COMMANDS@\$/{r $tmp
d
}" "$template" >"$output"
