#!/usr/bin/env bash
# Tests the reservoir's server on an emulated host whose NIC does the TLS, over a TAP in a network namespace of its own:
# curl and `reservoir copy` download and upload, SHA-256 is equal each time; the same with TLS by the host's CPU.
#   tests/reservoir/tap.sh RESERVOIR [MIB]        RESERVOIR is built with feature tap
# Needs root and /dev/net/tun; without them, reports so and exits with 77.
. "$(dirname "$0")/../linux/lib.sh"
server=${1:?"tap.sh: which reservoir?"} mib=${2:-64} address=10.77.0.1
require
command -v openssl >/dev/null || skip "openssl is missing"
mkdir "$work/root" "$work/from"
head -c "${mib}M" /dev/urandom >"$work/from/large"
head -c 3000 /dev/urandom >"$work/from/small"
: >"$work/from/empty"
cp "$work/from/large" "$work/root/served"
hash=$(sha256sum <"$work/from/large")
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=reservoir -addext basicConstraints=critical,CA:FALSE \
    -addext "subjectAltName=IP:$address" -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
export RESERVOIR_TOKEN=a-token-of-tests
printf '[[token]]\nname = "tests"\nsha256 = "%s"\nrights = ["read", "write"]\n' \
    "$(printf %s "$RESERVOIR_TOKEN" | sha256sum | cut -d' ' -f1)" >"$work/tokens.toml"
served="serve --root $work/root --cert $work/cert.pem --key $work/key.pem --tokens $work/tokens.toml"
url=https://$address:8443

get() { inside curl -sS --fail --noproxy '*' --max-time 120 --cacert "$work/cert.pem" -H "Authorization: Bearer $RESERVOIR_TOKEN" "$@"; }
copy() { inside "$server" copy --cacert "$work/cert.pem" --block 1MiB "$@" >"$work/said" 2>&1 || { cat "$work/said"; return 1; }; }
is_whole() { [ "$(sha256sum <"$1")" = "$hash" ]; }
fetched_by_curl() { rm -f "$work/got"; get -o "$work/got" "$url/served" && is_whole "$work/got"; }
a_range_by_curl() { get -r 1000-1999 "$url/served" | cmp - <(tail -c +1001 "$work/from/large" | head -c 1000); }
sent_by_curl() { rm -f "$work/root/sent"; get -T "$work/from/large" "$url/sent" && is_whole "$work/root/sent"; }
fetched() { rm -f "$work/got"; copy --verify "$url/served" "$work/got" && is_whole "$work/got"; }
sent() { rm -rf "$work/root/from"; copy --verify "$work/from" "$url/" && diff -r "$work/from" "$work/root/from"; }
fetched_by_http3() { rm -f "$work/got"; copy --http3 --verify "$url/served" "$work/got" && is_whole "$work/got"; }
sent_by_http3() { rm -rf "$work/root/from"; copy --http3 --verify "$work/from" "$url/" && diff -r "$work/from" "$work/root/from"; }
stranger() { ! inside curl -sS --fail --noproxy '*' --cacert "$work/cert.pem" "$url/served" -o "$work/got" 2>/dev/null; }

for how in "" --cpu; do
    if [ -z "$how" ]; then echo "TLS by the NIC"; else echo "TLS by the host's CPU"; fi
    # shellcheck disable=SC2086
    start --http3 $how
    for claim in fetched_by_curl a_range_by_curl sent_by_curl fetched sent fetched_by_http3 sent_by_http3 stranger; do check "$claim${how:+, $how}" "$claim"; done
    stop
    sealed=$(counted tx_tls_encrypted_packets) opened=$(counted rx_tls_decrypted_packets)
    echo "  packets the NIC sealed: $sealed, opened: $opened"
    quic="$(counted quic_tx_pkts) $(counted quic_rx_pkts)"
    echo "  packets of QUIC that it sealed and opened: $quic"
    if [ -z "$how" ]; then
        check "the NIC sealed what was fetched" [ "$sealed" -gt $((2 * mib * 700)) ]
        check "the NIC opened what was sent" [ "$opened" -gt $((2 * mib * 700)) ]
        check "the NIC sealed and opened over HTTP/3" [ "${quic% *}" -gt $((mib * 350)) -a "${quic#* }" -gt $((mib * 350)) ]
    else
        check "the NIC did nothing of TLS, nor of QUIC" [ "$sealed$opened$quic" = "000 0" ]
    fi
done

echo "it is told to end while a client takes what is queued"
start
ends_well() {
    head -c 3000000 "$work/from/large" >"$work/root/queued"
    get --limit-rate 1M -o "$work/got" "$url/queued" & local client=$!
    sleep 1
    kill "$pid"
    wait "$pid" || return 1
    pid=
    wait "$client" && cmp "$work/got" "$work/root/queued"
}
check "the client has all of it" ends_well

echo "the TAP is deleted under it"
start
ends() { local status=0; inside ip link del nic0; wait "$pid" || status=$?; pid=; [ "$status" = 1 ] && grep -q "nic0 is gone" "$work/log"; }
check "the server ends and says why" ends
echo "done"
