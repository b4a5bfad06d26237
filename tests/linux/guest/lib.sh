# What scripts with stock guests share, to be sourced. The guest is there afterwards, or the script has ended and said why. `here` is the script's
# folder, `work` one of its own, which goes when the script ends, as does what it has started.
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
