# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Snapshots of a machine with its memory: it goes on, and so do machines that start from them.

# in_machine ID COMMAND...
in_machine() {
    local of=$1
    shift
    "$floe" sandbox exec "$of" --user root --cwd /root -i -- "$@" </dev/null
}

# steps ID: how far the program in it has come.
steps() {
    local said
    said=$(in_machine "$1" tail -n 1 /root/pair.log)
    [[ $said == 'step '* ]] || fail "the program in $1 said: $(in_machine "$1" tail -n 5 /root/pair.log)"
    printf '%s\n' "${said#step }"
}

# goes_on ID AFTER: the program goes on, from there.
goes_on() {
    local now
    for _ in $(seq 300); do
        now=$(steps "$1")
        if ((now > $2 + 3)); then
            return 0
        fi
        sleep 0.2
    done
    fail "the program in $1 does not go on after step $2 ($now)"
}

step "a machine"
source_id=$("$floe" sandbox create -q --vm --memory 384M --vcpus 2)

step "a computation in the middle, with all that belongs to one: the source and three clones finish it"
"$floe" sandbox exec "$source_id" --user root -i -- sh -c 'mkdir -p /root/work && cat >/root/finish.py' <"$here/finish.py"
in_machine "$source_id" sh -c "setsid python3 /root/finish.py /root/work $rounds >/root/finish.log 2>&1 &"
within 240 in_machine "$source_id" grep -q begun /root/finish.log || fail "the computation does not begin"
middle=$("$floe" sandbox snapshot -q "$source_id")
is "$(in_machine "$source_id" wc -l /root/finish.log)" "1 /root/finish.log"
mapfile -t thirds < <("$floe" fork -q "$middle" third --count 3 --run)
is "${#thirds[@]}" 3
is_finished() {
    # One that said something else will never say it.
    in_machine "$1" sh -c '! grep -q Error /root/finish.log' || fail "$(in_machine "$1" cat /root/finish.log)"
    in_machine "$1" grep -q '^result' /root/finish.log
}
declare -A results
for each in "$source_id" "${thirds[@]}"; do
    within 900 is_finished "$each" || fail "$each does not finish: $(in_machine "$each" cat /root/finish.log)"
    results[$(in_machine "$each" tail -n 1 /root/finish.log)]=1
done
mkdir "$work/finish"
is "${!results[*]}" "$(python3 "$here/finish.py" "$work/finish" "$rounds" | tail -n 1)"
for each in "${thirds[@]}"; do
    "$floe" sandbox kill -q "$each"
done

step "a program in it that never ends"
"$floe" sandbox exec "$source_id" --user root -i -- sh -c 'mkdir -p /root/pair && cat >/root/pair.py' <"$here/pair.py"
in_machine "$source_id" sh -c 'setsid python3 /root/pair.py /root/pair >/root/pair.log 2>&1 &'
within 240 in_machine "$source_id" grep -qx 'step 3' /root/pair.log || fail "the program does not begin"
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
done
has "$("$floe" snap show "$next")" "over that of"

step "sandbox fork: a machine's forks go on"
fork=$("$floe" sandbox fork -q "$source_id")
is "$(in_machine "$fork" cat /proc/sys/kernel/random/boot_id)" "$boot"
goes_on "$fork" "$before"

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

step "a snapshot that is deleted takes its image with it; what runs from it runs on"
"$floe" snap delete -q "$snapshot"
[[ ! -e $FLOE_STORE/images/$snapshot ]] || fail "the image is there"
goes_on "${clones[1]}" "$(steps "${clones[1]}")"
for each in "$source_id" "${clones[1]}" "$fork"; do
    "$floe" sandbox kill -q "$each"
done

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
for n in $(seq "$kills"); do
    "$floe" sandbox snapshot -q "$last" >"$work/taken" 2>&1 &
    asked=$!
    sleep "0.$((n * 37 % 100))"
    kill -INT "$asked"
    wait "$asked" || true
    goes_on "$last" "$(steps "$last")"
    images_are_whole

    "$floe" sandbox snapshot -q "$last" >"$work/taken" 2>&1 &
    asked=$!
    sleep "0.$((n * 53 % 100))"
    kill -KILL "$(monitors)"
    wait "$asked" || true
    within 60 state_is "$last" failed || fail "$("$floe" sandbox show "$last")"
    images_are_whole
    stop_last

    "$floe" sandbox snapshot -q "$last" >"$work/taken" 2>&1 &
    asked=$!
    sleep "0.$((n * 71 % 100))"
    kill -KILL "$serve"
    wait "$serve" || true
    wait "$asked" || true
    serve
    is "$(monitors)" ""
    state_is "$last" stopped || fail "$("$floe" sandbox show "$last")"
    images_are_whole
    stop_last
done
"$floe" sandbox kill -q "$last"
