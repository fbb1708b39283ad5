#!/usr/bin/env bash
# Runs fsx, which does random reads, writes, mappings, holes, copies and truncations and checks every
# byte it reads, on a Floe mount while snapshots are taken, so that every write may meet a frozen file.
#
#   scripts/fsx.sh [DIR [OPERATIONS [SEED...]]]        default: - 20000 1 2
#
# For each seed two run at once: one on a new file, and one on a file that has contents and lies in a
# frozen layer. fsx empties the file that it is started on. So the second begins in a workspace; where it
# opens its file for the tenth time, after some hundred operations, it is held up (scripts/fsx-wait.c), the
# workspace is snapshotted and forked, and it goes on with the same file in the mounted fork. The fork is
# snapshotted several times a second. At the end each snapshot that was looked at when it was taken must
# be the same, read through a read-only mount, and the store sound.
#
# With DIR `-` all that happens in a store in a temporary directory. With another DIR fsx runs there, on
# whatever file system that is, without snapshots.
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/snapshots.sh
. "$floe_root/scripts/snapshots.sh"

where=${1:--}
operations=${2:-20000}
seeds=("${@:3}")
if ((${#seeds[@]} == 0)); then
    seeds=(1 2)
fi

need_root "$@"
need_packages getfattr:attr cc:gcc /usr/include/stdio.h:libc6-dev
install_tool fsx 0.3.2
fsx=$tool

scratch=$(mktemp -d)
running=()
finish() {
    local pid
    for pid in "${running[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    end_store
}
at_end finish

cat >"$scratch/fsx.0.toml" <<'CONFIG'
flen = 1048576
[opsize]
max = 150000
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 3
fsync = 0.2
fdatasync = 0.2
punch_hole = 2
posix_fallocate = 2
copy_file_range = 2
sendfile = 2
CONFIG
# With odd seeds what was stored in a mapping is left for the kernel, or a snapshot, to write back.
sed '1i nomsyncafterwrite = true' "$scratch/fsx.0.toml" >"$scratch/fsx.1.toml"
cc -shared -fPIC -O1 -Wall -Wextra -Werror -o "$scratch/wait.so" "$floe_root/scripts/fsx-wait.c" -ldl

# start_fsx FILE KIND SEED [VARIABLE=VALUE...]
start_fsx() {
    env "${@:4}" "$fsx" -q -f "$scratch/fsx.$(($3 % 2)).toml" -N "$operations" -S "$3" -P "$scratch" "$1" >"$scratch/$2.log" 2>&1 &
    running+=($!)
}

# frozen_goes_on SEED: gives the fsx that waits its file in a mounted fork. Sets $dir to the fork's mount.
frozen_goes_on() {
    local seed=$1
    until [[ -e $scratch/file.waits ]]; do
        if ! kill -0 "${running[0]}" 2>/dev/null; then
            cat "$scratch/frozen.log" >&2
            die "fsx ended before its file was frozen" "more operations than $operations are needed"
        fi
        sleep 0.01
    done
    if [[ $where == - ]]; then
        keep_snapshot w
        "$floe" fork -q "$kept_id" "fork$seed" >/dev/null
        dir=$scratch/fork$seed
        "$floe" mount -q "fork$seed" "$dir" >/dev/null
        start_snapshots "fork$seed" 0.15 8
    fi
    ln -sfn "$dir/fsx-frozen.$seed" "$scratch/file"
    touch "$scratch/file.goes"
}

if [[ $where == - ]]; then
    fresh_mount "$scratch"
    base=$dir
else
    base=$(cd -- "$where" && pwd -P)
fi
for seed in "${seeds[@]}"; do
    start=$(now_us) dir=$base running=()
    rm -f -- "$scratch/file.waits" "$scratch/file.goes"
    ln -sfn "$base/fsx-frozen.$seed" "$scratch/file"
    start_fsx "$scratch/file" frozen "$seed" \
        "FLOE_FSX_FILE=$scratch/file" FLOE_FSX_OPEN=10 "LD_PRELOAD=$scratch/wait.so"
    frozen_goes_on "$seed"
    start_fsx "$dir/fsx-new.$seed" new "$seed"
    for kind in frozen new; do
        if ! wait "${running[0]}"; then
            cat "$scratch/$kind.log" >&2
            die "fsx found a difference: the $kind file, seed $seed" "scripts/fsx.sh $where $operations $seed"
        fi
        running=("${running[@]:1}")
    done
    if [[ $where == - ]]; then
        stop_snapshots
    fi
    rm -f -- "$dir/fsx-frozen.$seed" "$dir/fsx-new.$seed"
    printf 'fsx: seed %s: %d operations on a new file, and on a frozen one: passed (%s)\n' \
        "$seed" "$operations" "$(human_time $(($(now_us) - start)))"
done

if [[ $where == - ]]; then
    check_snapshots
fi
