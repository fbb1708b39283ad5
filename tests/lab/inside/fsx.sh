# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# fsx in the guest, on its workspace, as scripts/fsx.sh runs it on the host.

[[ -n $run ]] || start_machine w
step "fsx in the guest, $operations operations on each of two files"
guest sh -c 'mkdir -p -m 755 tested && tar x -C /root' <"$here/tools.tar"
guest env FLOE_TOOLS=/root/tools /root/floe/scripts/fsx.sh /workspace/tested "$operations" 1 2>&1 </dev/null ||
    fail "fsx found a difference"
