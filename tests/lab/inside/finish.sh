# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# A snapshot in the middle of a computation: it ends as it would have, in the source and in three clones.

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
"$floe" sandbox kill -q "$source_id"
