# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# Snapshots while a machine works.

[[ -n $run ]] || start_machine w
step "a snapshot of the machine's root, and one of its workspace"
guest sh -c 'echo before >/workspace/state; echo before >/root/state'
taken=$("$floe" sandbox snapshot "$id")
of_w=$("$floe" snapshot w)
guest sh -c 'echo after >/workspace/state; echo after >/root/state'
is "$(mounted "$taken" cat root/state) $(mounted "$of_w" cat state)" "before before"
ends 4 "$floe" rollback w "$of_w"

step "$cuts snapshots of the workspace while programs in the machine write are causal"
guest cc -O1 -Wall -Wextra -Werror -o causal causal.c
python3 "$here/causal.py" "$floe" "$id" /workspace/cut "$cuts" "$floe" snapshot -q w 2>"$work/causal.log" ||
    fail "a snapshot shows what never was: $(cat "$work/causal.log")"

step "and five of its root"
python3 "$here/causal.py" "$floe" "$id" /root/cut 5 "$floe" sandbox snapshot -q "$id" 2>"$work/causal.log" ||
    fail "a snapshot shows what never was: $(cat "$work/causal.log")"

step "what programs stored through mappings is in snapshots of the files"
# Nobody writes it back by and by, and whoever has it mapped goes on: it is in the machine's memory only.
guest sh -c 'echo 0 >/proc/sys/vm/dirty_writeback_centisecs'
cat >"$work/mapped.py" <<'MAPPED'
import mmap, os, time

kept = []
for path in "/workspace/mapped", "/root/mapped":
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 4096)
    kept.append(mmap.mmap(fd, 4096))
for number in 1, 2, 3:
    for pages in kept:
        pages[:8] = b"stored-%d" % number
    open("/root/stored-%d" % number, "w").close()
    while not os.path.exists("/root/store-%d" % (number + 1)):
        time.sleep(0.05)
MAPPED
guest sh -c 'cat >/root/mapped.py' <"$work/mapped.py"
guest sh -c 'setsid -f python3 /root/mapped.py </dev/null >/root/mapped.log 2>&1' </dev/null
within 120 guest test -e /root/stored-1 </dev/null || fail "nothing was stored"
is "$(mounted "$("$floe" snapshot -q w)" head -c 8 mapped)" "stored-1"
guest touch /root/store-2 </dev/null
within 120 guest test -e /root/stored-2 </dev/null || fail "nothing more was stored"
is "$(mounted "$("$floe" sandbox snapshot -q "$id")" head -c 8 root/mapped)" "stored-2"
is "$(mounted "$("$floe" snapshot -q w)" head -c 8 mapped)" "stored-2"
guest touch /root/store-3 </dev/null
within 120 guest test -e /root/stored-3 </dev/null || fail "nothing more was stored"
"$floe" fork w mapped-fork >/dev/null
is "$(mounted mapped-fork head -c 8 mapped)" "stored-3"
"$floe" ws delete mapped-fork >/dev/null
guest sh -c 'touch /root/store-4; echo 500 >/proc/sys/vm/dirty_writeback_centisecs' </dev/null

step "paused, it stands still, and resumed it goes on"
# One thread counts in memory, another says how far it is: what is said stands still too if only files do.
cat >"$work/count.py" <<'COUNT'
import os, threading, time

count = 0

def counting():
    global count
    while True:
        count += 1
        time.sleep(0.01)

threading.Thread(target=counting, daemon=True).start()
while not os.path.exists("/workspace/counted"):
    with open("/workspace/count.new", "w") as said:
        said.write(str(count))
    os.replace("/workspace/count.new", "/workspace/count")
    time.sleep(0.05)
COUNT
guest sh -c 'cat >/root/count.py' <"$work/count.py"
guest sh -c 'setsid -f python3 /root/count.py </dev/null >/root/count.log 2>&1' </dev/null
looked=$work/looked
"$floe" mount -q --read-only w "$looked" >/dev/null
within 120 test -s "$looked/count" || fail "nobody counts"
began=$(cat "$looked/count")
sleep 5
in_5_s=$(($(cat "$looked/count") - began))
((in_5_s > 0)) || fail "nobody counts on"
"$floe" sandbox pause -q "$id" >/dev/null
is "$("$floe" vm show "$id" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["state"])')" paused
stands=$(cat "$looked/count")
sleep 10
is "$(cat "$looked/count")" "$stands"
"$floe" sandbox resume -q "$id" >/dev/null
counts_on() {
    [[ $(cat "$looked/count") != "$stands" ]]
}
within 60 counts_on || fail "it does not go on"
# What it would have counted meanwhile is twice as much as in five seconds.
gained=$(($(cat "$looked/count") - stands))
((gained > 0 && gained < in_5_s)) || fail "it counted $gained while it was paused for 10 s, and $in_5_s in 5 s before"
guest touch counted </dev/null
"$floe" umount -q "$looked" >/dev/null
is "$(guest cat state)" "after"
