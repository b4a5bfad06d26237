# Shared code of the scripts here: a network namespace with a TAP, and an emulated host behind the TAP. Needs root and
# /dev/net/tun; without them `require` reports so and exits with 77, which means "skipped".
set -euo pipefail
server=${HTTPS_SERVER:-target/release/https_server}
work=$(mktemp -d) namespace=nic-offload-$$ pid=
# The store of used numbers is removed with the run.
export XDG_STATE_HOME=$work/state

require() {
    local why=
    [ "$(id -u)" = 0 ] || why="not root"
    command -v curl >/dev/null || why="curl is missing"
    command -v ip >/dev/null || why="ip (iproute2) is missing"
    [ -e /dev/net/tun ] || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; } 2>/dev/null || why="no /dev/net/tun, and it cannot be made"
    [ -n "$why" ] || (: <>/dev/net/tun) 2>/dev/null || why="/dev/net/tun cannot be opened"
    [ -n "$why" ] || ip netns add "$namespace" 2>/dev/null || why="no network namespace can be made"
    [ -z "$why" ] || skip "$why"
    inside ip link set lo up
}

skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }

inside() { ip netns exec "$namespace" "$@"; }

start() { # options of the server
    : >"$work/log" # the last one's is not this one's
    ip netns exec "$namespace" "$server" ${served-"$work/site"} --tap nic0 "$@" >>"$work/log" 2>&1 & pid=$!
    until grep -q '^Ctrl-C' "$work/log"; do
        kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "the server did not start"; exit 1; }
        sleep 0.05
    done
    # Exactly the commands that the program prints for this end.
    sed -n 's/^  \(ip .*\)/\1/p' "$work/log" | while read -r command; do
        inside $command 2>/dev/null || echo "note: no $command here"
    done
}

stop() { # leaves what was counted in $work/log
    local status=0
    kill "$pid"
    wait "$pid" || status=$?
    pid=
    [ "$status" = 0 ] || { cat "$work/log"; echo "the server ended with status $status"; exit 1; }
}

counted() { # name -> value
    awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }' "$work/log"
}

check() { # what is claimed, command that says whether it is so
    local claim=$1; shift
    "$@" || { cat "$work/log"; echo "NOT SO: $claim"; exit 1; }
}

clean_up() {
    ip netns pids "$namespace" 2>/dev/null | xargs -r kill 2>/dev/null || true
    wait
    ip netns del "$namespace" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
