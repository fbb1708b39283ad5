# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# How machines end.

is_gone() {
    [[ -z $("$floe" vm list --quiet) && -z $(monitors) ]]
}

[[ -n $run ]] || start_machine w
step "its monitor is killed: it says why, and the workspace is whole"
guest sh -c 'echo written at last >last'
kill -KILL "$(monitors)"
status=0
wait "$run" || status=$?
is "$status" 125
has "$(cat "$work/run.log")" "its monitor was killed"
run=''
within 30 is_gone || fail "the machine stays"
is "$(mounted w cat last)" "written at last"

step "it is stopped"
# The second does the same by another name.
ways=("vm stop")
if [[ ${FLOE_TEST_LONG:-} == 1 ]]; then
    ways+=("sandbox kill")
fi
for command in "${ways[@]}"; do
    start_machine w
    guest sh -c "echo $command >last"
    # shellcheck disable=SC2086 # words
    "$floe" $command "$id" >"$work/stop.log" 2>&1 || fail "$command"
    status=0
    wait "$run" || status=$?
    run=''
    is "$status" 125
    is "$("$floe" vm list --quiet)" ""
    is "$(monitors)" ""
    is "$(mounted w cat last)" "$command"
done

step "whoever ran it is gone, and with them the machine"
start_machine w
kill -KILL "$run"
wait "$run" 2>/dev/null || true
run=''
within 60 is_gone || fail "a machine stays that nobody waits for"
