# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Commands in a machine that stays: a compiler, git, a hundred at once, signals, time limits.

step "a machine that stays"
[[ -n $run ]] || start_machine w
is "$("$floe" vm show "$id" --json | python3 -c 'import json,sys; v=json.load(sys.stdin); print(v["kind"], v["state"])')" "vm running"
ends 4 "$floe" mount w "$work/mount"
is "$(guest sh -c 'id -u; cat /proc/1/comm' | tr '\n' ' ')" "0 init "

step "a compiler, and git"
guest sh -c 'cc -O1 -Wall -Wextra -Werror -o causal causal.c && ./causal --version' >"$work/cc.log" 2>&1 ||
    fail "what was compiled does not run"
is "$(cat "$work/cc.log")" "causal, compiled and run"
is "$(guest sh -c '
    git init -q r && cd r && printf "[user]\nname = n\nemail = m\n" >>.git/config && echo one >f && git add f &&
    git commit -qm first && git log --format=%s; git status --short')" first

step "a hundred commands at once"
# They all run before one of them may end, and no more than 25 are started at the same time: an emulated machine
# is slow.
mkfifo "$work/hold"
guest sh -c 'exec 9>/tmp/gate; flock 9; echo held; read -r go' <"$work/hold" >"$work/held.log" 2>&1 &
holder=$!
exec 7>"$work/hold"
within 60 grep -q held "$work/held.log" || fail "the gate is not held"
have_begun() {
    local n
    for n in $(seq "$1"); do
        [[ -s $work/out.$n ]] || return 1
    done
}
pids=()
for n in {1..100}; do
    "$floe" sandbox exec "$id" -- sh -c "echo $n; flock -s /tmp/gate true; echo $n >&2; exit $n" \
        >"$work/out.$n" 2>"$work/err.$n" </dev/null 7>&- &
    pids+=($!)
    if ((n % 25 == 0)); then
        within 120 have_begun "$n" || fail "of $n commands some have not begun: $(cat "$work"/err.*)"
    fi
done
kill -0 "${pids[@]}" || fail "one has ended before it might"
exec 7>&-
wait "$holder" || true
for n in {1..100}; do
    status=0
    wait "${pids[n - 1]}" || status=$?
    is "$status $(cat "$work/out.$n" "$work/err.$n" | tr '\n' ' ')" "$n $n $n "
done
rm -f "$work"/out.* "$work"/err.*

step "signals"
# signalled SIGNAL SCRIPT: runs the script in the machine and sends the client the signal when it says `ready`.
# Sets $status.
signalled() {
    local signal=$1 client
    : >"$work/signalled.log"
    "$floe" sandbox exec "$id" --user root -- sh -c "$2" >"$work/signalled.log" 2>&1 </dev/null &
    client=$!
    within 60 grep -q ready "$work/signalled.log" || fail "the command does not begin"
    kill -"$signal" "$client"
    status=0
    wait "$client" 2>/dev/null || status=$?
}
# shellcheck disable=SC2016 # for the shell in the guest
waits='echo ready; while :; do sleep 0.05; done'
signalled TERM "trap 'echo got it; exit 9' TERM; $waits"
is "$status $(tail -n 1 "$work/signalled.log")" "9 got it"
signalled INT "exec python3 -c 'import time; print(\"ready\", flush=True); time.sleep(1000)'"
has "$(cat "$work/signalled.log")" KeyboardInterrupt
is "$status" 130
# When the client is killed, the command hears that nobody waits for it any more.
signalled KILL "trap 'echo hung up >/workspace/hung-up; exit' HUP; $waits"
within 60 guest test -e hung-up || fail "a command goes on whose client was killed"
ends 137 guest sh -c 'kill -KILL $$'

step "time limits, and commands that are not there"
ends 124 "$floe" sandbox exec "$id" --timeout 2s -- sleep 1000
ends 124 "$floe" sandbox exec "$id" --timeout 2s -- sh -c 'trap "" TERM; while :; do sleep 1; done'
ends 127 "$floe" sandbox exec "$id" -- /nowhere
ends 126 "$floe" sandbox exec "$id" -- /etc/passwd
