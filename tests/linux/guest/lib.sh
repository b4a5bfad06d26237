# Shared code of the scripts with stock guests; to be sourced. Afterwards the guest exists, or the script has ended with
# the reason. `here` is the script's folder, `work` a folder of its own, which is removed at the end, as are the started
# programs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) pid=
# The store of used numbers is removed with the run.
export XDG_STATE_HOME=$work/state
clean_up() {
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap clean_up EXIT
status=0
"$here/guest/build.sh" ${GUEST:+"$GUEST"} || status=$?
[ "$status" = 0 ] || exit "$status"
