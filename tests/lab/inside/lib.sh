# shellcheck shell=bash
# What the parts of tests/lab/machine share. They run in the lab as root; `floe serve` is the daemon.
set -euo pipefail

# Where the files are that were handed in.
export here=/run/lab
floe=/tmp/floe
# Where the snapshots and workspaces are mounted that a test looks at, and what it writes down.
work=/tmp/work
export FLOE_STORE=/tmp/store
mkdir -p "$work"
# What the parts use.
export bytes cuts operations chain pairs rounds kills
bytes=$((64 << 20)) cuts=20 operations=20000 chain=3 pairs=3 rounds=20 kills=1
if [[ ${FLOE_TEST_LONG:-} == 1 ]]; then
    bytes=$((1 << 30)) cuts=100 chain=20 pairs=50 rounds=100 kills=6
fi

step() {
    printf '== %s (after %d s)\n' "$*" "$SECONDS"
}

# fail WHAT: says what was wrong, with everything that may tell why.
fail() {
    local file
    printf 'FAILED: %s\n' "$*"
    "$floe" vm list || true
    for file in "$work"/*.log "$FLOE_STORE"/run/*.log "$FLOE_STORE"/run/sandboxes/*; do
        if [[ -s $file && -f $file ]]; then
            printf -- '-- the end of %s\n' "$file"
            tail -n 50 "$file" || true
        fi
    done
    exit 1
}

# is FOUND WANTED
is() {
    [[ $1 == "$2" ]] || fail "'$1' is not '$2'"
}

# has TEXT PART
has() {
    [[ $1 == *"$2"* ]] || fail "'$2' is not in '$1'"
}

# ends STATUS COMMAND...: the command ends with the status.
ends() {
    local wanted=$1 status=0
    shift
    "$@" 2>"$work/complaint" || status=$?
    if ((status != wanted)); then
        cat "$work/complaint" >&2
        fail "status $status, not $wanted: $*" >&2
    fi
}

# within SECONDS COMMAND...: the command succeeds before that time is over.
within() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        if ((SECONDS > until)); then
            return 1
        fi
        sleep 0.2
    done
}

# guest COMMAND...: runs it in the machine as root, at /workspace, with this input.
guest() {
    "$floe" sandbox exec "$id" --user root --cwd /workspace -i -- "$@"
}

# mounted WHAT COMMAND...: runs a command in a mount of a workspace or snapshot on the host.
mounted() {
    local what=$1 dir=$work/mount status=0
    shift
    "$floe" mount -q "$what" "$dir" >/dev/null || fail "$what cannot be mounted"
    (cd -- "$dir" && "$@") || status=$?
    "$floe" umount -q "$what" >/dev/null || fail "$what cannot be unmounted"
    return "$status"
}

# start_machine WORKSPACE: starts a machine on a workspace, which stays until its `floe vm run` ends. Sets
# $id, and $run, the pid of that.
start_machine() {
    "$floe" vm run --workspace "$1" -- sleep 100000 >"$work/run.log" 2>&1 </dev/null &
    run=$!
    within 400 is_up || fail "the machine does not run"
}

is_up() {
    kill -0 "$run" 2>/dev/null || fail "floe vm run has ended"
    id=$("$floe" vm list --quiet)
    [[ -n $id ]] && "$floe" sandbox exec "$id" -- true 2>/dev/null
}

# state_is ID STATE
state_is() {
    [[ $("$floe" sandbox show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["state"])') == "$2" ]]
}

# serve: starts the daemon; sets $serve, its pid.
serve() {
    local before
    before=$(times_serving)
    "$floe" serve --addr 127.0.0.1:8090 >>"$work/serve.log" 2>&1 </dev/null &
    serve=$!
    within 60 serves_again "$before" || fail "the daemon does not serve"
}

times_serving() {
    grep -c 'listening on' "$work/serve.log" 2>/dev/null || true
}

# Nobody may ask before: the command would start a daemon of its own.
serves_again() {
    kill -0 "$serve" 2>/dev/null || fail "the daemon has ended"
    (($(times_serving) > ${1:-0}))
}

# monitors: the pids of the monitors that run a machine; others wait for one.
monitors() {
    local pid
    for pid in $(pgrep -f "^$floe vm monitor" || true); do
        if grep -q '/floe-' "/proc/$pid/cgroup" 2>/dev/null; then
            printf '%s\n' "$pid"
        fi
    done
}

# in_machine ID COMMAND...: runs it in that machine as root.
in_machine() {
    local of=$1
    shift
    timeout 300 "$floe" sandbox exec "$of" --user root --cwd /root -i -- "$@" </dev/null
}

# start_counter ID: starts a program in a machine that never ends (pair.py): what it has in memory and in files goes in
# step.
start_counter() {
    "$floe" sandbox exec "$1" --user root -i -- sh -c 'mkdir -p /root/pair && cat >/root/pair.py' <"$here/pair.py"
    in_machine "$1" sh -c 'setsid python3 /root/pair.py /root/pair >/root/pair.log 2>&1 &'
    within 240 in_machine "$1" grep -qx 'step 3' /root/pair.log || fail "the program does not begin"
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
