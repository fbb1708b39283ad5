# shellcheck shell=bash
# What the scripts share. Source it; it runs nothing by itself but the settings below.
set -euo pipefail

floe_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

# Colours only on a terminal, and never the sole carrier of meaning.
# shellcheck disable=SC2034 # some are used only by the scripts that source this file
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'
else
    bold='' dim='' red='' green='' plain=''
fi

# die WHAT [HINT]: says what is wrong and how to go on, and ends the script.
die() {
    printf '%serror:%s %s\n' "$red" "$plain" "$1" >&2
    if (($# > 1)); then
        printf 'hint: %s\n' "$2" >&2
    fi
    exit 1
}

heading() {
    printf '\n%s== %s%s\n' "$bold" "$1" "$plain"
}

# Microseconds of the wall clock.
now_us() {
    local now=${EPOCHREALTIME/[.,]/}
    printf '%s\n' "$now"
}

# human_time MICROSECONDS: '812 us', '4.2 ms', '1.93 s'.
human_time() {
    local us=$1
    if ((us < 1000)); then
        printf '%d us\n' "$us"
    elif ((us < 1000000)); then
        printf '%d.%d ms\n' $((us / 1000)) $((us % 1000 / 100))
    else
        printf '%d.%02d s\n' $((us / 1000000)) $((us % 1000000 / 10000))
    fi
}

need_root() {
    if ((EUID != 0)); then
        die "this must run as root: it mounts file systems for other users" "sudo $0 $*"
    fi
}

need_fuse() {
    if [[ ! -e /dev/fuse ]] && command -v modprobe >/dev/null; then
        modprobe fuse 2>/dev/null || true
    fi
    if [[ ! -e /dev/fuse ]]; then
        die "there is no /dev/fuse" \
            "modprobe fuse, or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
    fi
    if ! (: <>/dev/fuse) 2>/dev/null; then
        die "/dev/fuse cannot be opened" \
            "the container needs permission for the device: --device /dev/fuse --cap-add SYS_ADMIN"
    fi
}

# cargo from the PATH or from where rustup puts it, at least as new as Cargo.toml asks for.
need_rust() {
    local wanted found bin=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    if ! command -v cargo >/dev/null && [[ -x $bin/cargo ]]; then
        PATH=$bin:$PATH
        export PATH
    fi
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$floe_root/Cargo.toml" | head -n 1)
    if ! command -v cargo >/dev/null; then
        die "cargo was not found: a Rust toolchain is needed, version $wanted or newer" \
            "install one with rustup (https://rustup.rs), then make sure that \$HOME/.cargo/bin is in root's PATH"
    fi
    # Asked in the repository: rustup can have another version for each directory.
    found=$(cd -- "$floe_root" && cargo --version | cut -d' ' -f2)
    if [[ $(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1) != "$wanted" ]]; then
        die "Rust $found is too old: Floe needs $wanted or newer (Debian's own package is older)" \
            "rustup update stable, or first install rustup: https://rustup.rs"
    fi
}

# need_packages [WHAT:]PACKAGE...: installs Debian packages of which WHAT is missing. WHAT is a file
# if it begins with '/', otherwise a command; without WHAT the package itself is looked up.
need_packages() {
    local item what package missing=()
    for item in "$@"; do
        what=${item%%:*} package=${item##*:}
        if [[ $item != *:* ]]; then
            if dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed$'; then
                continue
            fi
        elif [[ $what == /* ]]; then
            if [[ -e $what ]]; then
                continue
            fi
        elif command -v "$what" >/dev/null; then
            continue
        fi
        missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then
        return
    fi
    if ! command -v apt-get >/dev/null || ((EUID != 0)); then
        die "missing: ${missing[*]} (names of Debian packages)" "apt-get install ${missing[*]}"
    fi
    printf 'installing Debian packages: %s\n' "${missing[*]}"
    local log
    log=$(mktemp)
    if ! apt_get_install "${missing[@]}" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "apt-get could not install ${missing[*]}" "apt-get update && apt-get install ${missing[*]}"
    fi
    rm -f "$log"
}

# PostgreSQL's server, without the cluster that the package would make and start.
need_postgresql() {
    local config=/etc/postgresql-common/createcluster.d/floe.conf
    if command -v pg_createcluster >/dev/null; then
        return
    fi
    mkdir -p "${config%/*}"
    printf 'create_main_cluster = false\n' >"$config"
    need_packages postgresql
    rm -f "$config"
}

# The package lists are fetched once a run, and only when something is to be installed.
apt_get_install() {
    export DEBIAN_FRONTEND=noninteractive
    if [[ -z ${floe_apt_updated:-} ]]; then
        apt-get update -q
        export floe_apt_updated=1
    fi
    apt-get install -q -y --no-install-recommends "$@"
}

# A C compiler builds the bundled SQLite, and links.
need_build_tools() {
    need_rust
    need_packages cc:gcc /usr/include/stdio.h:libc6-dev git:git
}

# cargo's target directory, wherever the configuration puts it.
target_dir() {
    cargo metadata --manifest-path "$floe_root/Cargo.toml" --format-version 1 --no-deps |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# mounts_below DIR: mount points at DIR and below, the last mounted first.
mounts_below() {
    local dir=$1 point
    while read -r _ _ _ _ point _; do
        point=$(printf '%b' "${point//\\/\\0}")
        if [[ $point == "$dir" || $point == "$dir"/* ]]; then
            printf '%s\n' "$point"
        fi
    done </proc/self/mountinfo | tac
}

# floe_processes [DIR]: pids of running floe programs; with DIR only those that name it on their
# command line or in their environment.
floe_processes() {
    local dir=${1:-} process exe
    for process in /proc/[0-9]*; do
        exe=$(readlink "$process/exe" 2>/dev/null) || continue
        exe=${exe% (deleted)}
        if [[ ${exe##*/} != floe ]]; then
            continue
        fi
        if [[ -z $dir ]] ||
            cat "$process/cmdline" "$process/environ" 2>/dev/null | grep -qaF -- "$dir"; then
            printf '%s\n' "${process#/proc/}"
        fi
    done
}

# sandbox_processes [DIR]: pids of what holds sandboxes; with DIR only those that name it on their command
# line.
sandbox_processes() {
    local dir=${1:-} process exe
    for process in /proc/[0-9]*; do
        exe=$(readlink "$process/exe" 2>/dev/null) || continue
        exe=${exe% (deleted)}
        case $exe in
            */bwrap) ;;
            # Of the sandbox's first process nothing tells whose it is.
            */floe/guest) if [[ -n $dir ]]; then continue; fi ;;
            *) continue ;;
        esac
        if [[ -z $dir ]] || tr '\0' '\n' <"$process/cmdline" 2>/dev/null | grep -qaF -- "$dir"; then
            printf '%s\n' "${process#/proc/}"
        fi
    done
}

# at_end FUNCTION: calls it when the script ends, also when it is interrupted.
at_end() {
    # shellcheck disable=SC2064 # the name is known now
    trap "$1" EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# remove_below DIR: ends the floe programs that work in DIR (a directory that the calling script
# made for itself), unmounts and detaches everything in it, and removes it. Safe to call twice.
remove_below() {
    local dir=$1 pid point device backing
    if [[ ! -d $dir ]]; then
        return
    fi
    for pid in $(floe_processes "$dir") $(sandbox_processes "$dir"); do
        kill "$pid" 2>/dev/null || true
        for _ in {1..50}; do
            if [[ ! -d /proc/$pid ]]; then
                break
            fi
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    while read -r point; do
        umount "$point" 2>/dev/null || umount -l "$point" || true
    done < <(mounts_below "$dir")
    if command -v losetup >/dev/null; then
        while read -r device backing; do
            if [[ $backing == "$dir"/* ]]; then
                losetup -d "$device" || true
            fi
        done < <(losetup -n -O NAME,BACK-FILE 2>/dev/null || true)
    fi
    if [[ -n $(mounts_below "$dir") ]]; then
        printf 'warning: %s is left behind: something in it is still mounted\n' "$dir" >&2
        return
    fi
    rm -rf --one-file-system -- "$dir"
}

# install_tool NAME VERSION: a program from crates.io into target/tools, at exactly this version; or that which is
# in $FLOE_TOOLS already. Sets $tool to its path.
install_tool() {
    local name=$1 version=$2 root
    if [[ -z ${FLOE_TOOLS:-} ]]; then
        need_build_tools
    fi
    root=${FLOE_TOOLS:-$(target_dir)/tools}
    tool=$root/bin/$name
    if [[ $("$tool" --version 2>/dev/null || true) != "$name $version" ]]; then
        printf 'installing %s %s into %s\n' "$name" "$version" "$root"
        env -u CARGO_TARGET_DIR cargo install --quiet "$name" --version "=$version" --locked --root "$root"
    fi
}

# fresh_mount SCRATCH: makes a store in SCRATCH and mounts a new workspace `w` of it. Sets $floe,
# $FLOE_STORE and $dir (the mount point). End with `"$floe" daemon stop` and `remove_below SCRATCH`.
fresh_mount() {
    need_fuse
    floe=${FLOE_BIN:-}
    if [[ -z $floe ]]; then
        need_build_tools
        cargo build --quiet --manifest-path "$floe_root/Cargo.toml" -p floe
        floe=$(target_dir)/debug/floe
    fi
    export FLOE_STORE=$1/store
    dir=$1/mount
    # Users without privileges must be able to reach the directory.
    mkdir "$dir"
    chmod 755 "$1" "$dir"
    "$floe" store init -q >/dev/null
    "$floe" ws create -q w >/dev/null
    "$floe" mount -q w "$dir" >/dev/null
}
