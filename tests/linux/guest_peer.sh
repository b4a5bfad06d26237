#!/usr/bin/env bash
# Tests a stock Linux guest in QEMU on the emulated host's wire: pings the host, and sends and fetches files over plain
# TCP and over TLS by the NIC; over QEMU's datagram sockets, one frame each, and over its stream socket. Needs no root.
#   tests/linux/guest_peer.sh [MIB]        how much goes each way; 8 by default, for QEMU interprets the guest
. "$(dirname "$0")/guest/lib.sh"
server=${HTTPS_SERVER:-target/release/https_server} mib=${1:-8}

mkdir "$work/site"
head -c "${mib}M" /dev/urandom >"$work/site/bulk"
cat >"$work/script" <<'SCRIPT'
set -euo pipefail
ip addr add 10.77.0.2/24 dev eth0
ip link set eth0 up
ping -c 3 -i 0.2 -W 5 10.77.0.1
name=server.nic-offload.test
[ "$SCHEME" = http ] || secure=(--cacert ca.pem --resolve "$name:443:10.77.0.1")
url=$SCHEME://$([ "$SCHEME" = http ] && echo 10.77.0.1 || echo "$name")
get() { curl -sS --fail --max-time 120 "${secure[@]}" "$@"; }
get -w 'down %{speed_download} bytes/s\n' -o got "$url/bulk"
[ "$(sha256sum <got)" = "$HASH  -" ] || { echo "what came is not what was sent"; exit 1; }
answer=$(get -w 'up %{speed_upload} bytes/s\n' -T got "$url/")
[ "${answer%%$'\n'*}" = "$(stat -c %s got) $HASH" ] || { echo "$answer: what went is not what arrived"; exit 1; }
echo "${answer#*$'\n'}"
SCRIPT

run() { # scheme, options of the server, of QEMU
    local scheme=$1 options=$2 netdev=$3 status=0
    echo "$scheme, $options"
    # shellcheck disable=SC2086
    (cd "$work" && exec "$server" site $options >log 2>&1) & pid=$!
    until grep -q '^Ctrl-C' "$work/log" 2>/dev/null; do
        kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "the server did not start"; exit 1; }
        sleep 0.05
    done
    (cd "$work" && "$here/guest/boot.sh" -e "SCHEME=$scheme" -e "HASH=$hash" -f "$ca" script \
        -netdev "$netdev" -device virtio-net-pci,netdev=n0) || status=$?
    kill "$pid"
    wait "$pid" || true
    pid=
    [ "$status" = 0 ] || { cat "$work/log"; exit "$status"; }
    rm "$work/log"
}
hash=$(sha256sum <"$work/site/bulk" | cut -d' ' -f1)
server=$(realpath -e "$server")
ca=$(realpath "$here/../../crates/offload-testbed/identity/ca.pem")
run http "--dgram port guest" dgram,id=n0,local.type=unix,local.path=guest,remote.type=unix,remote.path=port
run https "--stream port --loss 0.01" stream,id=n0,server=off,addr.type=unix,addr.path=port
echo "done: $mib MiB each way"
