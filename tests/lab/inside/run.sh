# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# A machine for one command: its output and exit code; what the host wrote before is in the guest, what the
# guest wrote is on the host after.

step "a command, its output, its exit code; what was written is on the host"
mounted w sh -c 'echo of the host >from-host; mkdir -p deep/er; ln from-host deep/er/link; chmod 640 from-host'
said=$(ends 7 "$floe" vm run --workspace w -- sh -c '
    uname -s; cat from-host; stat -c "%a %h" deep/er/link; echo of the guest >from-guest
    python3 -c "print(6 * 7)" | tr 2 3; git --version | cut -d" " -f1; exit 7') || exit
is "$said" $'Linux\nof the host\n640 2\n43\ngit'
is "$(mounted w cat from-guest)" "of the guest"
is "$("$floe" vm list --quiet)" ""

step "a mount of what a guest could write to lets nobody become somebody else"
"$floe" mount -q w "$work/mount" >/dev/null
grep -q "^[^ ]* $work/mount [^ ]* [^ ]*nosuid,nodev" /proc/mounts || fail "set-id files of a guest would count"
"$floe" umount -q w >/dev/null
