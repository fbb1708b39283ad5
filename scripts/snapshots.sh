# shellcheck shell=bash
# shellcheck disable=SC2154 # $scratch and $floe are the sourcing script's
# Snapshots of a workspace taken while something else works in it, and whether they stay what they
# were. Source it after lib.sh; it needs $scratch, a directory of the script's own, and what
# `fresh_mount "$scratch"` sets. End with `end_snapshots`, whatever happened.

snapshots=

# tree_list DIR: a text that says everything that can be read below DIR: names, kinds, modes, owners,
# links, sizes, inode numbers, devices, times, targets, attributes and hashes of contents.
tree_list() (
    set -e
    export LC_ALL=C
    cd -- "$1"
    find . -print0 | sort -z | xargs -0r stat --printf '%N %f %u %g %h %s %i %t:%T %y %z\n'
    find . -print0 | sort -z | xargs -0r getfattr -h -d -m - -e hex --absolute-names
    find . -type f -print0 | sort -z | xargs -0r sha256sum
)

# list_snapshot ID FILE: writes the list of a snapshot, read through a read-only mount, to FILE.
list_snapshot() (
    set -e
    at=$(mktemp -d "$scratch/frozen.XXXXXX")
    "$floe" mount -q "$1" "$at" >/dev/null
    tree_list "$at" >"$2"
    # Lazily: a load may look at every mount of the machine, and have this one open.
    "$floe" umount -q --lazy "$at"
    rmdir -- "$at"
)

# keep_snapshot WORKSPACE: takes a snapshot and notes what is in it. Sets $kept_id.
keep_snapshot() {
    mkdir -p "$scratch/kept"
    kept_id=$("$floe" snapshot -q "$1")
    list_snapshot "$kept_id" "$scratch/kept/$kept_id"
}

# start_snapshots WORKSPACE PAUSE EVERY: from now on takes a snapshot of WORKSPACE, again PAUSE seconds
# after the one before, and notes what is in every EVERYth, until `stop_snapshots`.
start_snapshots() {
    local workspace=$1 pause=$2 every=$3
    rm -f -- "$scratch/enough"
    (
        set -e
        number=0
        until [[ -e $scratch/enough ]]; do
            if ((number % every == 0)); then
                keep_snapshot "$workspace"
            else
                "$floe" snapshot -q "$workspace" >/dev/null
            fi
            printf '.' >>"$scratch/taken"
            number=$((number + 1))
            sleep "$pause"
        done
    ) &
    snapshots=$!
}

# stop_snapshots: fails if a snapshot failed since `start_snapshots`.
stop_snapshots() {
    local status=0
    touch "$scratch/enough"
    wait "$snapshots" || status=$?
    snapshots=
    if ((status != 0)); then
        die "a snapshot failed meanwhile"
    fi
}

# For a script's end, however it comes, with the store hung or gone.
end_snapshots() {
    local child
    if [[ -z $snapshots ]]; then
        return
    fi
    touch "$scratch/enough"
    for _ in {1..100}; do
        if ! kill -0 "$snapshots" 2>/dev/null; then
            break
        fi
        sleep 0.1
    done
    for child in $(cat "/proc/$snapshots/task/$snapshots/children" 2>/dev/null || true); do
        kill -KILL "$child" 2>/dev/null || true
    done
    kill -KILL "$snapshots" 2>/dev/null || true
    snapshots=
}

# end_store: ends what `fresh_mount "$scratch"` and this file began, and removes the directory. Whatever
# fails from then on, the script goes on.
end_store() {
    set +e
    end_snapshots
    if [[ -d $scratch/store ]]; then
        "$floe" daemon stop >/dev/null 2>&1
    fi
    remove_below "$scratch"
}

# check_snapshots: fails unless every snapshot whose list was kept still gives the same, and the store
# is sound.
check_snapshots() {
    local kept count=0 taken=0
    for kept in "$scratch"/kept/*; do
        list_snapshot "${kept##*/}" "$scratch/now"
        if ! cmp -s -- "$kept" "$scratch/now"; then
            diff -- "$kept" "$scratch/now" | head -n 20 >&2 || true
            die "snapshot ${kept##*/} is not what it was when it was taken"
        fi
        count=$((count + 1))
    done
    "$floe" check >"$scratch/check" 2>&1 || { cat "$scratch/check" >&2; die "the store is not sound"; }
    if [[ -e $scratch/taken ]]; then
        taken=$(wc -c <"$scratch/taken")
    fi
    printf '%d snapshots taken meanwhile; %d of those looked at were unchanged at the end, the store sound\n' \
        "$taken" "$count"
}
