#!/usr/bin/env bash
# Tests the reservoir with XRootD 5 (HTTP and third-party copies), davix and xrdcp: PUT and GET in each direction,
# digests, COPY between both servers in both directions. SHA-256 is equal each time. Programs that are not installed are
# skipped.
# usage: tests/reservoir/xrootd.sh PATH-OF-reservoir
set -euo pipefail
reservoir="$1"
. "$(dirname "$0")/common.sh"
command -v xrootd >/dev/null || { echo "SKIPPED: xrootd is not here (Debian: xrootd-server xrootd-server-plugins)"; exit 77; }
library="$(find /usr/lib -name 'libXrdHttpTPC-5.so' 2>/dev/null | head -1)"
[ -n "$library" ] || { echo "SKIPPED: XRootD's HTTP plug-ins are not here (Debian: xrootd-server-plugins)"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "SKIPPED: not root, and XRootD runs as a user of its own"; exit 77; }
id xrootd >/dev/null 2>&1 || useradd -r xrootd
head -c 40000000 /dev/urandom >"$work/from/large"

# One authority for both servers: XRootD's third-party copies accept no certificate without one.
chmod 755 "$work"
(cd "$work" && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca -addext basicConstraints=critical,CA:TRUE 2>/dev/null
for name in reservoir xrootd; do
    openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=localhost 2>/dev/null
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\n' >extensions
    openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out $name.pem 2>/dev/null
done
cp reservoir.key key.pem; cp reservoir.pem cert.pem)
trusted=(--cacert "$work/ca.pem")
copy() { "$reservoir" copy "${trusted[@]}" "$@"; }
curl() { command curl -sS --fail-with-body "${trusted[@]}" "$@"; }

mkdir -p "$work/store/data" "$work/store/admin"
cat >"$work/store/config" <<CONFIG
oss.localroot $work/store/data
all.export /
all.adminpath $work/store/admin
all.pidpath $work/store/admin
xrd.port 10947
xrd.tls $work/xrootd.pem $work/store/key
xrd.tlsca certfile $work/ca.pem
xrd.protocol http:18447 libXrdHttp.so
http.httpsmode auto
http.exthandler xrdtpc libXrdHttpTPC.so
http.header2cgi Authorization authz
xrootd.chksum max 2 adler32
CONFIG
cp "$work/xrootd.key" "$work/store/key"
chmod 400 "$work/store/key"
chown -R xrootd "$work/store"
setpriv --reuid=xrootd --regid=nogroup --clear-groups xrootd -c "$work/store/config" -l "$work/store/log" -n test >/dev/null 2>&1 & other=$!
for _ in $(seq 200); do (: <>/dev/tcp/127.0.0.1/18447) 2>/dev/null && break; sleep 0.05; done
xrootd=https://localhost:18447
served="--tpc-allow localhost --tpc-cacert $work/ca.pem"
start
both="$port 18447"
whole() { [ "$(sha256sum <"$1")" = "$(sha256sum <"$work/from/large")" ] || { echo "$1 is not what was sent"; exit 1; }; }

echo "-- reservoir copy to XRootD $(xrootd -v 2>&1) and from it"
copy "$work/from/large" "$xrootd/put"
whole "$work/store/data/put"
copy --block 4MiB "$xrootd/put" "$work/got"
whole "$work/got"
if copy --verify "$work/from/large" "$xrootd/verified" >/dev/null 2>&1; then echo "what cannot be verified is said to be"; exit 1; fi
several "$both" "$(url '')/none" "$xrootd/none" >/dev/null 2>&1 && { echo "a file that is not there is copied"; exit 1; }
echo "-- between both servers, by way of the client"
several "$both" --block 4MiB "$xrootd/put" "$(url by-client)"
whole "$work/root/by-client"
several "$both" "$(url by-client)" "$xrootd/by-client"
whole "$work/store/data/by-client"
echo "-- COPY: the reservoir pulls from XRootD, and pushes there"
by_reservoir() { curl -X COPY -H "Authorization: Bearer $RESERVOIR_TOKEN" -H "$1" "$(url "$2")"; }
by_reservoir "Source: $xrootd/put" pulled | grep -qx "success: Created"
whole "$work/root/pulled"
by_reservoir "Destination: $xrootd/pushed" pulled | grep -qx "success: Created"
whole "$work/store/data/pushed"
echo "-- COPY: XRootD pulls from the reservoir, and pushes there"
by_xrootd() { curl -X COPY -H "Credential: none" -H "TransferHeaderAuthorization: Bearer $RESERVOIR_TOKEN" -H "$1" "$xrootd/$2" | tee "$work/said" | grep -q "^success"; }
by_xrootd "Source: $(url pulled)" pulled-by-it || { cat "$work/said"; exit 1; }
whole "$work/store/data/pulled-by-it"
by_xrootd "Destination: $(url pushed-by-it)" put || { cat "$work/said"; exit 1; }
whole "$work/root/pushed-by-it"

echo "-- copy --third-party: each server pulls and pushes"
several "$both" --third-party "$xrootd/put" "$(url asked-pulled)"
whole "$work/root/asked-pulled"
several "$both" --third-party=push "$(url asked-pulled)" "$xrootd/asked-pushed"
whole "$work/store/data/asked-pushed"
several "$both" --third-party "$(url asked-pulled)" "$xrootd/asked-pulled"
whole "$work/store/data/asked-pulled"
several "$both" --third-party=push "$xrootd/put" "$(url asked-pushed)"
whole "$work/root/asked-pushed"
if several "$both" --third-party "$xrootd/none" "$(url none)" >/dev/null 2>&1; then echo "a file that is not there is copied"; exit 1; fi

mkdir "$work/authorities" && cp "$work/ca.pem" "$work/authorities/" && openssl rehash "$work/authorities"
if command -v davix-get >/dev/null; then
    echo "-- davix $(davix-get --version 2>&1 | sed -n 's/.*[Vv]ersion[: ]*//p' | head -1) with the reservoir"
    davix=(--capath "$work/authorities" -H "Authorization: Bearer $RESERVOIR_TOKEN")
    davix-get "${davix[@]}" "$(url pulled)" "$work/by-davix"
    whole "$work/by-davix"
    davix-put "${davix[@]}" "$work/from/large" "$(url put-by-davix)"
    whole "$work/root/put-by-davix"
else
    echo "SKIPPED: davix is not here"
fi
if command -v xrdcp >/dev/null && [ -n "$(find /usr/lib -name 'libXrdClHttp*' 2>/dev/null | head -1)" ]; then
    echo "-- xrdcp over HTTPS with the reservoir"
    # Its plug-in supports X.509 proxies, but no tokens.
    "$reservoir" serve --listen 127.0.0.1:18448 --root "$work/root" --cert "$work/cert.pem" --key "$work/key.pem" --open-to-all >/dev/null 2>>"$work/log" & other="$other $!"
    for _ in $(seq 100); do (: <>/dev/tcp/127.0.0.1/18448) 2>/dev/null && break; sleep 0.05; done
    by_xrdcp() { X509_CERT_DIR="$work/authorities" xrdcp --allow-http -f -s "$@"; }
    by_xrdcp https://localhost:18448/pulled "$work/by-xrdcp"
    whole "$work/by-xrdcp"
    by_xrdcp "$work/from/large" https://localhost:18448/put-by-xrdcp
    whole "$work/root/put-by-xrdcp"
else
    echo "SKIPPED: xrdcp or its HTTP plug-in is not here (Debian: xrootd-client xrootd-client-http-plugins)"
fi
kill "$server"; wait "$server" || { echo "the server ended with $?"; exit 1; }
server=""
echo "all as it should be"
