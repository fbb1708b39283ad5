# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Snapshots while a machine works.

[[ -n $run ]] || start_machine w
step "a snapshot of the machine's root, and one of its workspace"
guest sh -c 'echo before >/workspace/state; echo before >/root/state'
taken=$("$floe" sandbox snapshot "$id")
of_w=$("$floe" snapshot w)
guest sh -c 'echo after >/workspace/state; echo after >/root/state'
is "$(mounted "$taken" cat root/state) $(mounted "$of_w" cat state)" "before before"
ends 4 "$floe" rollback w "$of_w"

step "$cuts snapshots of the workspace while programs in the machine write are causal"
guest cc -O1 -Wall -Wextra -Werror -o causal causal.c
python3 "$here/causal.py" "$floe" "$id" /workspace/cut "$cuts" "$floe" snapshot -q w 2>"$work/causal.log" ||
    fail "a snapshot shows what never was: $(cat "$work/causal.log")"

step "and five of its root"
python3 "$here/causal.py" "$floe" "$id" /root/cut 5 "$floe" sandbox snapshot -q "$id" 2>"$work/causal.log" ||
    fail "a snapshot shows what never was: $(cat "$work/causal.log")"

step "paused and resumed"
"$floe" sandbox pause -q "$id" >/dev/null
is "$("$floe" vm show "$id" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["state"])')" paused
"$floe" sandbox resume -q "$id" >/dev/null
is "$(guest cat state)" "after"
