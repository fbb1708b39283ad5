# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Many bytes through a command.

[[ -n $run ]] || start_machine w
step "$((bytes >> 20)) MiB there and back"
# The lab has not the memory for all of them.
head -c $((64 << 20)) /dev/urandom >"$work/bytes"
all_bytes() {
    local _
    for _ in $(seq $((bytes >> 26))); do
        cat "$work/bytes"
    done
}
is "$(all_bytes | guest cat | sha256sum)" "$(all_bytes | sha256sum)"
rm "$work/bytes"
