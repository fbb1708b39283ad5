# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# pjdfstest in the guest, on its workspace, as scripts/pjdfstest.sh runs it on the host.

[[ -n $run ]] || start_machine w
step "pjdfstest in the guest"
guest sh -c 'mkdir -p -m 755 tested && tar x -C /root' <"$here/tools.tar"
guest env FLOE_TOOLS=/root/tools NO_COLOR=1 /root/floe/scripts/pjdfstest.sh /workspace/tested \
    >"$work/pjdfstest.log" 2>&1 </dev/null || fail "cases of pjdfstest fail"
tail -n 5 "$work/pjdfstest.log"
