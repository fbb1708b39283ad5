#!/usr/bin/env bash
# Runs fsx, which does random reads, writes, mappings and truncations and checks every byte it
# reads, on a Floe mount while snapshots are taken, so that every write may meet a frozen file.
#
#   scripts/fsx.sh [DIR [OPERATIONS [SEED]]]
#
# Without DIR, or with DIR `-`, a store is made in a temporary directory and a workspace of it is
# mounted, snapshotted five times a second, and tested. With DIR, fsx alone runs there.
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

where=${1:--}
operations=${2:-20000}
seed=${3:-$RANDOM}

need_root "$@"
need_build_tools
install_tool fsx 0.3.2
fsx=$tool

scratch=$(mktemp -d)
snapshots=
finish() {
    if [[ -n $snapshots ]]; then
        kill "$snapshots" 2>/dev/null || true
        wait "$snapshots" 2>/dev/null || true
    fi
    if [[ -d $scratch/store ]]; then
        "$floe" daemon stop >/dev/null 2>&1 || true
    fi
    remove_below "$scratch"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cat >"$scratch/fsx.toml" <<'CONFIG'
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

if [[ $where == - ]]; then
    fresh_mount "$scratch"
    touch "$scratch/snapshots"
    while sleep 0.2; do
        "$floe" snapshot w >>"$scratch/snapshots" 2>>"$scratch/errors" || exit 1
    done &
    snapshots=$!
else
    dir=$where
fi

printf 'fsx: %d operations, seed %d\n' "$operations" "$seed"
file=$dir/fsx.$$
if ! "$fsx" -q -f "$scratch/fsx.toml" -N "$operations" -S "$seed" -P "$scratch" "$file"; then
    die "fsx found a difference" "scripts/fsx.sh $where $operations $seed"
fi
rm -f -- "$file"

if [[ -n $snapshots ]]; then
    if ! kill -0 "$snapshots" 2>/dev/null; then
        cat "$scratch/errors" >&2
        die "a snapshot failed while fsx ran"
    fi
    printf 'fsx: passed, with %d snapshots taken meanwhile\n' "$(wc -l <"$scratch/snapshots")"
else
    printf 'fsx: passed\n'
fi
