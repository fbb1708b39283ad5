# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Memory and files of a snapshot are of one point in time.

step "a machine"
source_id=$("$floe" sandbox create -q --vm --memory 384M --vcpus 2)

start_counter "$source_id"

step "matched pairs of memory and files, $pairs times"
for _ in $(seq "$pairs"); do
    pair=$("$floe" sandbox snapshot -q "$source_id")
    one=$("$floe" sandbox create -q "$pair")
    in_machine "$one" sh -c 'echo 3 >/proc/sys/vm/drop_caches'
    goes_on "$one" "$(steps "$one")"
    "$floe" sandbox kill -q "$one"
    "$floe" snap delete -q "$pair"
    [[ ! -e $FLOE_STORE/images/$pair ]] || fail "the image of $pair is there"
done
"$floe" sandbox kill -q "$source_id"
