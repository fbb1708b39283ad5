#!/usr/bin/env bash
# Runs the file-system loads of stress-ng, which check what they read, in a mounted fork of a snapshot
# while snapshots are taken. At the end each snapshot that was looked at when it was taken must be the
# same, read through a read-only mount, and the store sound.
#
#   scripts/stress.sh [DIR [SECONDS [LOAD...]]]        default: - 2, and every load below
#
# The loads run for SECONDS four at a time, each in two processes; then all of them at once, twice as long.
# With another DIR than `-` stress-ng alone runs there, to see how another file system does. A load that
# stress-ng skips fails the run: it would look like a passed one.
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/snapshots.sh
. "$floe_root/scripts/snapshots.sh"

where=${1:--}
seconds=${2:-2}
loads=("${@:3}")
if ((${#loads[@]} == 0)); then
    # Neighbours in this list run at the same time. Not in it: getdent and io, which read and sync every
    # mount of the machine; io-uring, which in this version fails on any file system of a recent kernel.
    loads=(
        access hdd link fcntl chdir fallocate rename flock chmod fpunch dentry lease chown copy-file dir locka
        dirdeep iomix symlink lockf dirmany mmap mknod lockofd filename msync fstat seek touch
        file-ioctl open sendfile utime inotify readahead sync-file xattr dnotify aio aiol revio splice handle
    )
fi

need_root "$@"
need_build_tools
need_packages stress-ng:stress-ng getfattr:attr

scratch=$(mktemp -d)
at_end end_store

# stress SECONDS LOAD...: these loads at once, in two processes each.
stress() {
    local length=$1 load arguments=()
    shift
    for load in "$@"; do
        arguments+=("--$load" 2)
        if [[ $load == mmap ]]; then
            arguments+=(--mmap-file --mmap-bytes 8m)
        fi
    done
    # What it says and how it ends differ: a load that failed is named in either.
    if ! stress-ng --temp-path "$dir" --timeout "${length}s" --verify --oomable --hdd-bytes 64m --iomix-bytes 64m \
        "${arguments[@]}" >"$scratch/log" 2>&1 || grep -qE '(fail|error):|skipping stress|will be skipped' "$scratch/log"; then
        cat "$scratch/log" >&2
        die "stress-ng: $*" "scripts/stress.sh $where $length $*"
    fi
}

if [[ $where == - ]]; then
    fresh_mount "$scratch"
    cp -a "$floe_root/docs" "$floe_root/scripts" "$floe_root/fs" "$dir"
    keep_snapshot w
    "$floe" fork -q "$kept_id" fork >/dev/null
    dir=$scratch/fork
    "$floe" mount -q fork "$dir" >/dev/null
    start_snapshots fork 0.5 10
else
    dir=$(cd -- "$where" && pwd -P)
fi

for ((at = 0; at < ${#loads[@]}; at += 4)); do
    stress "$seconds" "${loads[@]:at:4}"
    printf 'stress-ng: %s\n' "${loads[*]:at:4}"
done
if ((${#loads[@]} > 4)); then
    stress $((seconds * 2)) "${loads[@]}"
    printf 'stress-ng: all of them at once\n'
fi

if [[ $where == - ]]; then
    stop_snapshots
    check_snapshots
fi
