#!/usr/bin/env bash
# Tests HTTP/3 clients of Debian 13 against h3_server, over a TAP: curl --http3-only (nghttp3, ngtcp2, OpenSSL) and
# ngtcp2's gtlsclient (GnuTLS), run by chroot in a root from guest/root.sh; packets protected by the NIC, and by the
# CPU; a wire that loses 1 %.
#   tests/linux/quic_root.sh [MIB]        the size of what is fetched; 8 by default
HTTPS_SERVER=${H3_SERVER:-target/release/h3_server}
. "$(dirname "$0")/lib.sh"
mib=${1:-8} address=10.77.0.1 name=server.nic-offload.test
here=$(realpath "$(dirname "$0")")
identity=$(realpath "$here/../../crates/offload-testbed/identity")
require
status=0
"$here/guest/root.sh" peers curl ca-certificates ngtcp2-client || status=$?
[ "$status" = 0 ] || exit "$status"
root=$(realpath "$here/../../target/roots/peers")
mkdir -p "$work/site" "$root/tmp"
head -c "${mib}M" /dev/urandom >"$work/site/bulk"
hash=$(sha256sum <"$work/site/bulk" | cut -d' ' -f1)
cp "$identity/ca.pem" "$work/site/bulk" "$root/tmp/"
echo "$address $name" >"$root/etc/hosts"

there() { inside timeout 120 chroot "$root" "$@" >"$work/said" 2>"$work/peer"; }
curl_3() { # port, what more
    local port=$1; shift
    there curl -sS --fail --http3-only --noproxy '*' --cacert /tmp/ca.pem -w ' %{http_version}\n' "$@" || { cat "$work/peer"; return 1; }
}
fetched() {
    curl_3 "$1" -o /tmp/got "https://$name:$1/bulk" && cmp "$root/tmp/got" "$work/site/bulk" && [ "$(cat "$work/said")" = " 3" ]
}
part() {
    curl_3 "$1" -r 1000000-1999999 -o /tmp/part "https://$name:$1/bulk" &&
        cmp "$root/tmp/part" <(tail -c +1000001 "$work/site/bulk" | head -c 1000000)
}
sent() {
    curl_3 "$1" -T /tmp/bulk "https://$name:$1/" && [ "$(head -1 "$work/said")" = "$((mib << 20)) $hash" ]
}
several() { # files at the same time on one connection
    curl_3 "$1" -Z "https://$name:$1/page" -o /tmp/p1 "https://$name:$1/bulk" -o /tmp/p2 "https://$name:$1/page" -o /tmp/p3 &&
        cmp "$root/tmp/p2" "$work/site/bulk" && cmp "$root/tmp/p3" "$work/site/page"
}
by_gnutls() { # port, GnuTLS' priority string
    rm -rf "$root/tmp/gtls" && mkdir "$root/tmp/gtls"
    there gtlsclient -q --exit-on-all-streams-close --download /tmp/gtls --ciphers "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+$2" \
        "$address" "$1" "https://$name:$1/bulk" || true
    cmp "$root/tmp/gtls/bulk" "$work/site/bulk" || { tail -20 "$work/peer"; return 1; }
}

counted_by_nic() { # packets opened at least
    check "the NIC sealed" [ "$(counted QuicSealedDevice)" -gt 1000 ]
    check "the NIC opened" [ "$(counted QuicOpenedDevice)" -gt "$1" ]
    check "keys changed" [ "$(counted QuicKeysDevice)" -gt 2 ]
    sed -n '/^Quic\|^http_\|^quic_/p' "$work/log"
}

echo "a page" >"$work/site/page"
echo "$(chroot "$root" curl -V | head -1 | cut -d' ' -f1-2), over a wire that loses 1 %, the server changing its keys"
start --loss 0.01 --key-update-every 500
for port in 443 8443; do
    check "curl, port $port: what is fetched is whole" fetched $port
    check "curl, port $port: a part of it is" part $port
    check "curl, port $port: what is sent is whole" sent $port
    check "curl, port $port: several at the same time are" several $port
done
echo "gtlsclient: $(chroot "$root" dpkg-query -W -f '${Version}' ngtcp2-client)"
for port in 443 8443; do
    for suite in AES-128-GCM AES-256-GCM CHACHA20-POLY1305; do
        check "gtlsclient, $suite, port $port: what is fetched is whole" by_gnutls $port $suite
        echo "  $suite, port $port"
    done
done
stop
counted_by_nic 1000
# rustls has no AES-128-CCM: the suite is the testbed's, and the NIC protects 1-RTT packets.
start --loss 0.01 --key-update-every 500 --suite aes128-ccm
for port in 443 8443; do
    check "gtlsclient, AES-128-CCM, port $port: what is fetched is whole" by_gnutls $port AES-128-CCM
    echo "  AES-128-CCM, port $port"
done
stop
counted_by_nic 300
echo "done"
