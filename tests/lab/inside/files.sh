# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Files while a machine runs: what a call in the guest wrote is on the host when it has returned, and what
# the host wrote is in the guest.

[[ -n $run ]] || start_machine w
step "what the guest did is on the host when the call has returned"
# Each line is done by a call in the guest; at once after it the host looks, in a mount that was there before and by
# way of a snapshot.
seen=$work/seen
"$floe" mount -q --read-only w "$seen" >/dev/null
ls -laR "$seen" >/dev/null
while IFS=$'\t' read -r call look wanted; do
    guest sh -ec "$call" </dev/null
    is "$(cd -- "$seen" && sh -c "$look" 2>&1)" "$wanted"
    at=$("$floe" snapshot -q w)
    is "$(mounted "$at" sh -c "$look" 2>&1)" "$wanted"
done <<'CALLS'
printf one >now	cat now	one
printf two >>now; mv now then	echo $(ls now then 2>/dev/null) $(cat then)	then onetwo
truncate -s 3 then; mkdir -m 750 dir; ln -s ../then dir/link	echo $(cat dir/link) $(stat -c %a dir)	one 750
chown 1000:1000 then; chmod 4711 then; rm -r dir	echo $(stat -c '%u %g %a' then) $(ls -d dir 2>&1)	1000 1000 4711 ls: cannot access 'dir': No such file or directory
head -c 9000001 /dev/zero | tr '\0' x >large	echo $(tr -d x <large | wc -c) $(stat -c %s large)	0 9000001
CALLS
ends 1 touch "$seen/now"
has "$(cat "$work/complaint")" "Read-only file system"
grep -q "^[^ ]* $seen [^ ]* [^ ]*nosuid,nodev" /proc/mounts || fail "set-id files of a guest would count"
ends 4 "$floe" mount -q w "$work/mount"
has "$(cat "$work/complaint")" "mount --read-only"
"$floe" umount -q "$seen" >/dev/null

step "what the host writes is in the guest, and the other way round"
python3 "$here/files.py" "$id" "$("$floe" serve key)" >"$work/files.log" 2>&1 || fail "files do not pass"
is "$(guest cat from-api)" "from the host"
is "$(mounted "$("$floe" snapshot -q w)" cat from-api)" "from the host"
