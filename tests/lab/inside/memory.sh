# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Snapshots of a machine with its memory: it goes on, and so do machines that start from them.

step "a machine"
source_id=$("$floe" sandbox create -q --vm --memory 384M --vcpus 2)

step "a program in it that never ends"
start_counter "$source_id"
boot=$(in_machine "$source_id" cat /proc/sys/kernel/random/boot_id)
has "$("$floe" sandbox show "$source_id")" filesystem+memory

step "a snapshot with its memory; the source notices nothing"
before=$(steps "$source_id")
snapshot=$("$floe" sandbox snapshot -q "$source_id")
goes_on "$source_id" "$before"
has "$("$floe" snap show "$snapshot")" filesystem+memory
is_sealed() {
    [[ $("$floe" snap show "$1") == *sealed* ]]
}
within 120 is_sealed "$snapshot" || fail "the image is not sealed"
"$floe" sandbox logs "$source_id" | grep 'memory of the snapshot' || true

step "two machines go on from it, each with random numbers, files and a way to its agent of its own"
mapfile -t clones < <("$floe" fork -q "$snapshot" try --count 2 --run)
is "${#clones[@]}" 2
has "$("$floe" ws list --quiet)" try-2
declare -A random
for clone in "${clones[@]}"; do
    is "$(in_machine "$clone" cat /proc/sys/kernel/random/boot_id)" "$boot"
    goes_on "$clone" "$before"
    in_machine "$clone" sh -c 'echo 3 >/proc/sys/vm/drop_caches'
    goes_on "$clone" "$(steps "$clone")"
    random[$(in_machine "$clone" head -c 16 /dev/urandom | od -An -tx1)]=1
    drift=$(($(in_machine "$clone" date +%s) - $(date +%s)))
    ((drift > -60 && drift < 60)) || fail "the clock of $clone is wrong by $drift s"
    in_machine "$clone" sh -c 'echo of a clone >/root/mine'
done
is "${#random[@]}" 2
ends 1 in_machine "$source_id" test -e /root/mine

step "a chain: each snapshot of the machine that went on from the last"
last=${clones[0]}
for _ in $(seq "$chain"); do
    at=$(steps "$last")
    next=$("$floe" sandbox snapshot -q "$last")
    goes_on "$last" "$at"
    "$floe" sandbox kill -q "$last"
    last=$("$floe" sandbox create -q "$next")
    goes_on "$last" "$at"
    printf 'of the chain: %s (after %d s)\n' "$next" "$SECONDS"
done
has "$("$floe" snap show "$next")" "over that of"
"$floe" sandbox kill -q "$last"

step "sandbox fork: a machine's forks go on"
fork=$("$floe" sandbox fork -q "$source_id")
is "$(in_machine "$fork" cat /proc/sys/kernel/random/boot_id)" "$boot"
goes_on "$fork" "$before"
# With all its memory it is not kept for long.
"$floe" snap list --json | python3 -c '
import json, sys
forks = [snapshot for snapshot in json.load(sys.stdin) if snapshot["automatic"] == "fork"]
assert forks and all(snapshot["expires_at"] for snapshot in forks), forks
'

step "a snapshot that is deleted takes its image with it; what runs from it runs on"
"$floe" snap delete -q "$snapshot"
[[ ! -e $FLOE_STORE/images/$snapshot ]] || fail "the image is there"
goes_on "${clones[1]}" "$(steps "${clones[1]}")"
for each in "$source_id" "${clones[1]}" "$fork"; do
    "$floe" sandbox kill -q "$each"
done

