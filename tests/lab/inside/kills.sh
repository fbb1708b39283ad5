# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Snapshots that are cut off: every image is whole or gone.

step "a machine"
last=$("$floe" sandbox create -q --vm --memory 384M --vcpus 2)

start_counter "$last"
next=$("$floe" sandbox snapshot -q "$last")

step "killed in the middle of a snapshot, $kills times each: the monitor, the daemon, and whoever asked"
# Every image is whole or gone, and so is every snapshot that was to have one.
images_are_whole() {
    local unknown
    within 60 no_snapshot_is captur || fail "a snapshot is between two states: $("$floe" snap list)"
    "$floe" check --data >"$work/check.log" 2>&1 || fail "$(cat "$work/check.log")"
    unknown=$(comm -23 <(ls "$FLOE_STORE/images") \
        <("$floe" snap list --json | python3 -c 'import json,sys; [print(s["id"]) for s in json.load(sys.stdin)]' | sort))
    is "$unknown" ""
}
no_snapshot_is() {
    ! "$floe" snap list --json | grep -q "\"$1"
}
stop_last() {
    "$floe" sandbox kill -q "$last"
    last=$("$floe" sandbox create -q "$next")
}
# moment N: sleeps for what is another part of the time that a snapshot takes each time.
moment() {
    local tenths=$(($1 * 17 % 25))
    sleep "$((tenths / 10)).$((tenths % 10))"
}
for n in $(seq "$kills"); do
    "$floe" sandbox snapshot -q "$last" >"$work/taken" 2>&1 &
    asked=$!
    moment "$n"
    # It may have it already.
    kill -INT "$asked" 2>/dev/null || true
    wait "$asked" || true
    goes_on "$last" "$(steps "$last")"
    images_are_whole

    "$floe" sandbox snapshot -q "$last" >"$work/taken" 2>&1 &
    asked=$!
    moment $((n + 1))
    kill -KILL "$(monitors)"
    wait "$asked" || true
    within 60 state_is "$last" failed || fail "$("$floe" sandbox show "$last")"
    images_are_whole
    stop_last

    "$floe" sandbox snapshot -q "$last" >"$work/taken" 2>&1 &
    asked=$!
    moment $((n + 2))
    # Who has not asked yet would start a daemon of its own.
    kill -KILL "$asked" 2>/dev/null || true
    kill -KILL "$serve"
    wait "$serve" || true
    wait "$asked" || true
    serve
    is "$(monitors)" ""
    state_is "$last" stopped || fail "$("$floe" sandbox show "$last")"
    images_are_whole
    stop_last
    printf 'round %d (after %d s)\n' "$n" "$SECONDS"
done
"$floe" sandbox kill -q "$last"
