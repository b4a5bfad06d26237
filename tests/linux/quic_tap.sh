#!/usr/bin/env bash
# Tests other implementations of QUIC and HTTP/3 against ours, over a TAP in a network namespace of its own: clients of
# h3_server, whose packets are protected by the NIC or by the CPU, over a wire that loses 1 %; both ends update keys.
# Peers: quic-go and aioquic, fetched by peers.sh; an unavailable peer is skipped.
#   tests/linux/quic_tap.sh [MIB]        the size of what is fetched; 8 by default
HTTPS_SERVER=${H3_SERVER:-target/release/h3_server}
. "$(dirname "$0")/lib.sh"
mib=${1:-8} address=10.77.0.1 name=server.nic-offload.test
here=$(realpath "$(dirname "$0")")
identity=$(realpath "$here/../../crates/offload-testbed/identity")
mkdir -p "$work/site"
head -c "${mib}M" /dev/urandom >"$work/site/bulk"
hash=$(sha256sum <"$work/site/bulk" | cut -d' ' -f1) answer="$((mib << 20)) "
answer+=$hash
require

go=$("$here/peers.sh" quic-go) || { echo "SKIPPED: $go"; go=; }
aioquic=$("$here/peers.sh" aioquic) || { echo "SKIPPED: $aioquic"; aioquic=; }
[ -n "$go$aioquic" ] || skip "no peer can be installed"

is() { # what it prints is the answer
    local said
    said=$(inside timeout 120 "$@" 2>"$work/peer") || { cat "$work/peer"; return 1; }
    [ "$said" = "$answer" ] || { echo "it said: $said"; return 1; }
}
both_ways() { # checks of both ports: h3-nic, h3-cpu
    local port
    for port in 443 8443; do
        [ -z "$go" ] || {
            check "quic-go, port $port: what is fetched is whole" is "$go" get "$identity/ca.pem" "$address:$port" "https://$name:$port/bulk" "$work/got"
            check "quic-go, port $port: it is the file" cmp "$work/got" "$work/site/bulk"
            check "quic-go, port $port: what is sent is whole" is "$go" put "$identity/ca.pem" "$address:$port" "https://$name:$port/" "$work/site/bulk"
        }
        [ -z "$aioquic" ] || for suite in AES_128_GCM_SHA256 AES_256_GCM_SHA384 CHACHA20_POLY1305_SHA256; do
            check "aioquic, $suite, port $port: what is fetched is whole" is "$aioquic" "$here/aioquic_peer.py" get "$address:$port" "$identity/ca.pem" $suite /bulk "$work/got"
            check "aioquic, $suite, port $port: what is sent is whole" is "$aioquic" "$here/aioquic_peer.py" put "$address:$port" "$identity/ca.pem" $suite "$work/site/bulk"
        done
    done
}

echo "${go:+quic-go }${aioquic:+aioquic}, over a wire that loses 1 %, keys changed from both ends"
start --loss 0.01 --key-update-every 500
both_ways
stop
check "frames were lost" [ "$(counted wire_lost)" -gt 0 ]
check "the NIC sealed" [ "$(counted QuicSealedDevice)" -gt 1000 ]
check "the NIC opened" [ "$(counted QuicOpenedDevice)" -gt 1000 ]
check "the CPU did at the other port" [ "$(counted QuicSealedSw)$(counted QuicOpenedSw)" != 00 ]
check "keys changed" [ "$(counted QuicKeysDevice)" -gt 4 ]
check "nothing was dropped for want of a key" [ "$(counted quic_tx_drop_pkts)" = 0 ]
check "every request was answered" [ "$(counted http_cut_off)$(counted http_timed_out)" = 00 ]
sed -n '/^Quic\|^http_\|^rx_quic\|^tx_quic\|^quic_/p' "$work/log"
echo "done"
