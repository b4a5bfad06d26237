#!/usr/bin/env bash
# Tests Linux' kernel TLS (openssl -ktls in a stock guest in QEMU) against the emulated NIC's TLS: as client of
# https_server, then as server of https_client, files both ways, TLS 1.2 and 1.3, three suites. Needs no root.
#   tests/linux/ktls_guest.sh [MIB]        how much goes each way with each suite; 2 by default
. "$(dirname "$0")/guest/lib.sh"
server=$(realpath -e "${HTTPS_SERVER:-target/release/https_server}")
client=$(realpath -e "${HTTPS_CLIENT:-target/release/https_client}")
mib=${1:-2} name=server.nic-offload.test identity=$(realpath "$here/../../crates/offload-testbed/identity")

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
fail() { echo "NOT SO: $*"; cat said; exit 1; }
ip addr add 10.77.0.2/24 dev eth0
ip link set eth0 up
modprobe tls
told() { awk -v name="$1" '$1 == name { print $2 }' /proc/net/tls_stat; }
suites="tls1_3:TLS_AES_128_GCM_SHA256 tls1_3:TLS_AES_256_GCM_SHA384 tls1_3:TLS_CHACHA20_POLY1305_SHA256
    tls1_2:ECDHE-ECDSA-AES128-GCM-SHA256 tls1_2:ECDHE-ECDSA-AES256-GCM-SHA384 tls1_2:ECDHE-ECDSA-CHACHA20-POLY1305"
how() { # version:suite -> how openssl is told
    if [ "${1%%:*}" = tls1_3 ]; then echo "-tls1_3 -ciphersuites ${1#*:}"; else echo "-tls1_2 -cipher ${1#*:}"; fi
}
ask() { # version:suite, what is asked being the input
    timeout 60 openssl s_client -connect 10.77.0.1:443 -servername "$NAME" -CAfile ca.pem -verify_return_error \
        -ktls -quiet -ign_eof $(how "$1") 2>said
}
head="Host: $NAME\r\nConnection: close\r\n"
connections=0
for suite in $suites; do
    printf "GET /bulk HTTP/1.1\r\n$head\r\n" | ask "$suite" | tail -c "$SIZE" >got
    [ "$(sha256sum <got)" = "$HASH  -" ] || fail "$suite: what came is what was sent"
    { printf "PUT /bulk HTTP/1.1\r\n${head}Content-Length: $SIZE\r\n\r\n"; cat got; } | ask "$suite" >answer
    grep -q "^$SIZE $HASH" answer || fail "$suite: what went is what arrived: $(cat answer)"
    connections=$((connections + 2))
    [ "$(told TlsTxSw) $(told TlsRxSw)" = "$connections $connections" ] || fail "the kernel did it: $(cat /proc/net/tls_stat)"
    echo "client, ${suite#*:}"
done
port=4433
for suite in $suites; do
    openssl s_server -WWW -accept $port -cert server.pem -key server.key -ktls $(how "$suite") >>served 2>&1 &
    port=$((port + 1))
done
mv got bulk
echo "the end" >the-end
until [ "$(grep -c ACCEPT served)" = 6 ]; do sleep 0.1; done
echo "please fetch"
until grep -q 'FILE:the-end' served; do sleep 0.1; done
connections=$((connections + 7))
[ "$(told TlsTxSw) $(told TlsRxSw)" = "$connections $connections" ] || fail "the kernel did it: $(cat /proc/net/tls_stat)"
[ "$(told TlsDecryptError)" = 0 ] || fail "every record verified"
SCRIPT

counted() { awk -v name="$1" '$1 == name { print $2 }' "$work/log"; }
fail() { cat "$work/log"; echo "NOT SO: $*"; exit 1; }
fetch() { # port, file
    (cd "$work" && "$client" --dgram port guest --connect 10.77.0.2 --loss 0.001 "https://$name:$1/$2" --out "got-$2") >"$work/log" 2>&1
}
fetch_all() {
    for port in {4433..4438}; do
        fetch $port bulk || fail "a file comes from port $port"
        cmp "$work/got-bulk" "$work/site/bulk" || fail "it comes whole"
        [ "$(counted TlsRxRecordsDevice)" -gt 0 ] || fail "the NIC opened it"
        sed -n 's/^.*: \(TLS[^ ]*\)$/server, \1/p' "$work/log"
    done
    fetch 4433 the-end || fail "the end comes"
}

mkdir "$work/site"
head -c "${mib}M" /dev/urandom >"$work/site/bulk"
(cd "$work" && exec "$server" site --dgram port guest --mode https-nic --loss 0.001 >log 2>&1) & serving=$!
until grep -q '^Ctrl-C' "$work/log" 2>/dev/null; do
    kill -0 "$serving" 2>/dev/null || fail "the server starts"
    sleep 0.05
done
mkfifo "$work/fifo"
(cd "$work" && exec "$here/guest/boot.sh" -t 240 -e "NAME=$name" -e "SIZE=$((mib << 20))" \
    -e "HASH=$(sha256sum <site/bulk | cut -d' ' -f1)" -f "$identity/ca.pem" -f "$identity/server.pem" -f "$identity/server.key" \
    script -netdev dgram,id=n0,local.type=unix,local.path=guest,remote.type=unix,remote.path=port \
    -device virtio-net-pci,netdev=n0 >fifo) & booted=$!
while IFS= read -r line; do
    echo "$line"
    if [ "$line" = "please fetch" ]; then
        kill "$serving"
        wait "$serving" || fail "the server ends well"
        [ "$(counted TlsRxRecordsDevice)" -gt 0 ] && [ "$(counted TlsTxRecordsDevice)" -gt 0 ] || fail "the NIC did it"
        fetch_all
    fi
done <"$work/fifo"
wait "$booted" || status=$?
[ "$status" = 0 ] || { cat "$work/log"; exit "$status"; }
echo "done: $mib MiB each way with each suite"
