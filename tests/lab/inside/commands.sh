# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Commands in a machine that stays: a hundred at once, many bytes, git and a compiler, signals, time limits.

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
pids=()
for n in {1..100}; do
    "$floe" sandbox exec "$id" -- sh -c "echo $n; echo $n >&2; exit $n" >"$work/out.$n" 2>"$work/err.$n" </dev/null &
    pids+=($!)
done
for n in {1..100}; do
    status=0
    wait "${pids[n - 1]}" || status=$?
    is "$status $(cat "$work/out.$n" "$work/err.$n" | tr '\n' ' ')" "$n $n $n "
done
rm -f "$work"/out.* "$work"/err.*

step "$((bytes >> 20)) MiB there and back"
head -c "$bytes" /dev/urandom >"$work/in"
guest cat <"$work/in" >"$work/back"
cmp "$work/in" "$work/back" || fail "bytes were changed"
rm "$work/in" "$work/back"

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
