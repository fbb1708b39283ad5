#!/usr/bin/env bash
# Runs pjdfstest, a POSIX conformance suite, on a directory or on a fresh Floe mount.
#
#   scripts/pjdfstest.sh [DIR [PATTERN...]]
#
# DIR is a directory on the file system to test; the suite works in a subdirectory that it removes.
# Without DIR, a store is made in a temporary directory, and a mounted fork of a snapshot is tested while
# snapshots are taken of it. Those that were looked at must be the same at the end, and the store sound.
# PATTERN runs only the cases whose names contain it. The 13 cases that remount the file system
# read-only in the middle of a run are skipped: earlier cases keep it busy, on any file system.
#
# Cases in tests/pjdfstest.skip are expected to fail. Needs root. Two users are needed: `nobody`,
# and `tests`, which is made for the time of the run if it does not exist.
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/snapshots.sh
. "$floe_root/scripts/snapshots.sh"

need_root "$@"
need_packages /usr/include/sys/acl.h:libacl1-dev useradd:passwd getfattr:attr
install_tool pjdfstest 0.2.2
pjdfstest=$tool

scratch=$(mktemp -d)
second=
made_user=false
finish() {
    end_store
    if [[ -n $second ]]; then
        rm -rf -- "$second"
    fi
    if $made_user; then
        userdel tests
    fi
}
at_end finish

if ! id -u tests >/dev/null 2>&1; then
    useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin tests
    made_user=true
fi

own=false
if (($# == 0)); then
    own=true
    fresh_mount "$scratch"
    cp -a "$floe_root/docs" "$floe_root/scripts" "$dir"
    keep_snapshot w
    "$floe" fork -q "$kept_id" fork >/dev/null
    dir=$scratch/fork
    "$floe" mount -q fork "$dir" >/dev/null
    chmod 755 "$dir"
    start_snapshots fork 0.5 10
else
    dir=$(cd -- "$1" && pwd -P)
    shift
fi

# Users without privileges must be able to reach the directory.
parent=$dir
while [[ $parent != / ]]; do
    if ((0$(stat -c %a "$parent") % 2 == 0)); then
        die "other users may not search $parent, so most cases would fail" "chmod o+x $parent"
    fi
    parent=$(dirname -- "$parent")
done

# Cases about two file systems need a second one.
if [[ -d /dev/shm && $(stat -c %d /dev/shm) != "$(stat -c %d "$dir")" ]]; then
    second=$(mktemp -d /dev/shm/floe-pjdfstest.XXXXXX)
fi

# CASE REASON lines become the list of expected failures.
expected_failures() {
    local name reason
    while read -r name reason; do
        if [[ -z $name || $name == \#* ]]; then
            continue
        fi
        if [[ -z $reason ]]; then
            die "tests/pjdfstest.skip: $name has no reason"
        fi
        printf '    "%s",\n' "$name"
    done <"$floe_root/tests/pjdfstest.skip"
}

{
    printf '[features]\n'
    printf 'posix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n'
    if [[ -n $second ]]; then
        printf 'secondary_fs = "%s"\n' "$second"
    fi
    # Longer than the granularity of the kernel's coarse clock.
    printf '\n[settings]\nnaptime = 0.01\nallow_remount = false\nexpected_failures = [\n'
    expected_failures
    printf ']\n\n[dummy_auth]\nentries = [\n'
    for user in nobody tests; do
        printf '    ["%s", "%s"],\n' "$user" "$(id -gn "$user")"
    done
    printf ']\n'
} >"$scratch/pjdfstest.toml"

RUST_BACKTRACE=0 "$pjdfstest" --configuration-file "$scratch/pjdfstest.toml" --path "$dir" -- "$@"
if $own; then
    stop_snapshots
    check_snapshots
fi
