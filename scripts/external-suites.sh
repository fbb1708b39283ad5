#!/usr/bin/env bash
# Runs a POSIX suite that is already on this machine, built, on fresh Floe mounts. Nothing is fetched or
# built, and nothing is written into the checkout.
#
#   scripts/external-suites.sh pjdfstest CHECKOUT [TEST...]
#   scripts/external-suites.sh xfstests CHECKOUT [ARGUMENT...]      default: -g generic/auto
#
# pjdfstest is the suite in C and shell, run by `prove`; TEST is a file or directory below its `tests`.
# (scripts/pjdfstest.sh runs the one in Rust, and is part of scripts/test.) ARGUMENT goes to xfstests'
# `check`, for example `-g generic/quick` or `generic/013`. Its results are kept in target/xfstests.
#
# xfstests mounts and unmounts by itself. It is told that it tests FUSE, subtype `floe`, and finds a
# `mount` first in its PATH that hands mounts of that type to `floe mount` and all others to the system's,
# and a `df` that leaves the subtype out. `umount` is the system's. Users `fsgqa` and `fsgqa2` are made for the time of the run if they do not exist.
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/snapshots.sh
. "$floe_root/scripts/snapshots.sh"

usage='scripts/external-suites.sh pjdfstest|xfstests CHECKOUT [ARGUMENT...]'
if (($# < 2)); then
    die "a suite and its checkout are needed" "$usage"
fi
suite=$1
if [[ ! -d $2 ]]; then
    die "there is no directory $2" "name a checkout of $suite that is on this machine: nothing is fetched"
fi
checkout=$(cd -- "$2" && pwd -P)
arguments=("${@:3}")

# built FILE...: fails unless each is a program in the checkout.
built() {
    local file
    for file in "$@"; do
        if [[ ! -f $checkout/$file || ! -x $checkout/$file ]]; then
            die "$checkout is not built: there is no program $file" "build it there as its README says"
        fi
    done
}

# part_of FILE...: fails unless each is in the checkout.
part_of() {
    local file
    for file in "$@"; do
        if [[ ! -e $checkout/$file ]]; then
            die "$checkout is no checkout of $suite: there is no $file"
        fi
    done
}

case $suite in
    pjdfstest)
        part_of tests/misc.sh tests/conf
        built pjdfstest
        ;;
    xfstests)
        part_of check common/rc common/config tests/generic
        built ltp/fsstress ltp/fsx src/lstat64
        ;;
    *) die "unknown suite: $suite" "$usage" ;;
esac

need_root "$@"
need_build_tools

scratch=$(mktemp -d)
made_users=()
finish() {
    local user
    end_store
    for user in "${made_users[@]}"; do
        userdel "$user"
    done
}
at_end finish

prepare_pjdfstest() {
    local test
    need_packages prove:perl openssl:openssl
    command=(prove -r)
    for test in "${arguments[@]}"; do
        part_of "tests/$test"
        command+=("$checkout/tests/$test")
    done
    if ((${#arguments[@]} == 0)); then
        command+=("$checkout/tests")
    fi
    fresh_mount "$scratch"
    where=$dir
}

# mount_source WORKSPACE DIR: mounts it, and prints what the kernel calls the source of the mount.
mount_source() {
    "$floe" mount -q "$1" "$2" >/dev/null
    findmnt -n -o SOURCE --mountpoint "$2"
}

prepare_xfstests() {
    local user source
    need_packages bc:bc gawk:gawk perl:perl hostname:hostname getfattr:attr setfacl:acl xfs_io:xfsprogs \
        findmnt:util-linux useradd:passwd
    for user in fsgqa fsgqa2; do
        if ! id -u "$user" >/dev/null 2>&1; then
            useradd --user-group --create-home --base-dir "$scratch" "$user"
            made_users+=("$user")
        fi
    done
    fresh_mount "$scratch"
    "$floe" ws create -q scratch >/dev/null
    mkdir -m 755 "$scratch/scratch" "$scratch/bin"
    {
        printf 'export FSTYP=fuse FUSE_SUBTYP=.floe\n'
        source=$(mount_source w "$dir")
        printf 'export TEST_DEV=%q TEST_DIR=%q\n' "$source" "$dir"
        source=$(mount_source scratch "$scratch/scratch")
        printf 'export SCRATCH_DEV=%q SCRATCH_MNT=%q\n' "$source" "$scratch/scratch"
    } >"$scratch/local.config"
    umount "$scratch/scratch"
    mount_helper >"$scratch/bin/mount"
    # It compares what `df` says with `fuse`, without a subtype.
    printf '#!/usr/bin/env bash\nset -o pipefail\n%q "$@" | sed "s/ fuse\\.floe / fuse      /"\n' \
        "$(type -P df)" >"$scratch/bin/df"
    chmod 755 "$scratch/bin/mount" "$scratch/bin/df"
    if ((${#arguments[@]} == 0)); then
        arguments=(-g generic/auto)
    fi
    command=(env "PATH=$scratch/bin:$PATH" "HOST_OPTIONS=$scratch/local.config"
        "RESULT_BASE=$(target_dir)/xfstests" "TMPDIR=$scratch" ./check "${arguments[@]}")
    where=$checkout
}

# The `mount` that xfstests finds. What `floe mount` has no options for (ro, noexec and the like) is
# set on the mount afterwards; -i keeps the system's `mount` from looking for a helper of this type.
mount_helper() {
    printf '#!/usr/bin/env bash\n'
    printf 'export FLOE_STORE=%q\nfloe=%q\nmount=%q\n' "$FLOE_STORE" "$floe" "$(type -P mount)"
    cat <<'HELPER'
set -euo pipefail
given=("$@") type='' options=''
while getopts ':t:o:rw' option; do
    case $option in
        t) type=$OPTARG ;;
        o) options+=,$OPTARG ;;
        r) options+=,ro ;;
        w) options+=,rw ;;
        *) ;;
    esac
done
shift $((OPTIND - 1))
if [[ $type != fuse.floe || $# -ne 2 ]]; then
    exec "$mount" "${given[@]}"
fi
if [[ $options == *,remount* ]]; then
    options=${options//,remount/}
elif findmnt -n --mountpoint "$2" >/dev/null; then
    printf 'mount: %s: already mounted\n' "$2" >&2
    exit 32
else
    "$floe" mount -q "${1##*:}" "$2" >/dev/null || exit 32
fi
if [[ -n ${options//,/} ]]; then
    exec "$mount" -i -o "remount,bind$options" "$2"
fi
HELPER
}

"prepare_$suite"
cp -a "$floe_root/docs" "$dir"
keep_snapshot w
status=0
(cd -- "$where" && exec "${command[@]}") || status=$?
check_snapshots
if ((status != 0)); then
    die "$suite: some tests failed" "docs/posix.md says where Floe differs, and why"
fi
