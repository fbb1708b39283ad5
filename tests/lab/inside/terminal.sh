# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# A terminal in a machine.

[[ -n $run ]] || start_machine w
step "a terminal: keys, sizes, Ctrl-C, its end"
python3 "$here/terminal.py" "$floe" sandbox exec "$id" --user root --tty -- bash --norc --noprofile -i ||
    fail "a session in a terminal is not as it should be"
