# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Memory and files of a snapshot are of one point in time.

step "a machine with a program that never ends"
# With one processor, as the lab has: the spinning of a second costs it most of its time.
source_id=$("$floe" sandbox create -q --vm --memory 256M --vcpus 1)
start_counter "$source_id"

step "matched pairs of memory and files, $pairs times"
for n in $(seq "$pairs"); do
    pair=$("$floe" sandbox snapshot -q "$source_id")
    # Two at once would have half of the lab each.
    "$floe" sandbox pause -q "$source_id"
    one=$("$floe" sandbox create -q "$pair")
    in_machine "$one" sh -c 'echo 3 >/proc/sys/vm/drop_caches'
    goes_on "$one" "$(steps "$one")"
    "$floe" sandbox kill -q "$one"
    "$floe" snap delete -q "$pair" >/dev/null
    "$floe" sandbox resume -q "$source_id"
    [[ ! -e $FLOE_STORE/images/$pair ]] || fail "the image of $pair is there"
    printf 'pair %d (after %d s)\n' "$n" "$SECONDS"
done
"$floe" sandbox kill -q "$source_id"
