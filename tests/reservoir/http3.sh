#!/usr/bin/env bash
# Tests HTTP/3 over the kernel's UDP: the reservoir's two ends with each other, killed and stopped during copies; and
# curl of a whole Debian 13, if tests/linux/guest/root.sh has made one (tests/linux/quic_root.sh does).
# usage: tests/reservoir/http3.sh PATH-OF-reservoir
set -euo pipefail
reservoir="$1"
. "$(dirname "$0")/common.sh"
served="--http3 --log"
head -c 60000000 /dev/urandom >"$work/from/large"
: >"$work/from/empty"
for n in $(seq 300); do head -c "$n" "$work/from/large" >"$work/from/file $n"; done
start

echo "-- there and back, on one connection each"
by_http3() { copy --http3 --block 1MiB "$@"; }
by_http3 --verify "$work/from" "$(url '')"
by_http3 --verify --streams 3 "$(url from/)" "$work/back"
diff -r "$work/from" "$work/root/from" && diff -r "$work/from" "$work/back"
by_http3 "$(url from/large)" "$(url relayed)"
same "$work/from/large" "$work/root/relayed"
[ "$(grep -c ' tests ' "$work/log")" -gt 100 ] || { echo "the log has no requests"; exit 1; }

echo "-- a wrong token, and an authority that is not trusted"
said="$(RESERVOIR_TOKEN=wrong by_http3 "$(url relayed)" "$work/x" 2>&1)" && { echo "a wrong token is let in"; exit 1; }
grep -q "401" <<<"$said" || { echo "$said"; exit 1; }
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=other -keyout "$work/o.key" -out "$work/other.pem" 2>/dev/null
said="$("$reservoir" copy --http3 --cacert "$work/other.pem" "$(url relayed)" "$work/x" 2>&1)" && { echo "a stranger is trusted"; exit 1; }
grep -qi "certificate" <<<"$said" || { echo "$said"; exit 1; }

echo "-- either end is killed, and what is left is copied"
rm "$work/root/relayed"
by_http3 --rate 200M "$work/from/large" "$(url killed)" >/dev/null 2>&1 & client=$!
until [ "$(du -s "$work/root" | cut -f1)" -gt 75000 ]; do
    kill -0 "$client" 2>/dev/null || { echo "the copy ended before it was killed"; exit 1; }
    sleep 0.1
done
kill -9 "$client"
wait "$client" 2>/dev/null || true
by_http3 --rate 400M --resume "$work/from/large" "$(url killed)" >"$work/said" 2>&1 & client=$!
sleep 0.4
kill -9 "$server"
wait "$server" 2>/dev/null || true
start
wait "$client" || { cat "$work/said"; exit 1; }
same "$work/from/large" "$work/root/killed"

echo "-- a server copies from another by HTTP/3"
if command -v curl >/dev/null; then
    mkdir "$work/root2"
    "$reservoir" serve --listen 127.0.0.1:0 --root "$work/root2" --cert "$work/cert.pem" --key "$work/key.pem" --tokens "$work/tokens.toml" \
        --direct --tpc-allow localhost --tpc-cacert "$work/cert.pem" --tpc-http3 >"$work/told2" 2>&1 & other=$!
    until grep -q https "$work/told2"; do kill -0 "$other" || { cat "$work/told2"; exit 1; }; sleep 0.05; done
    said="$(curl -sS --noproxy '*' --cacert "$work/cert.pem" -X COPY -H "Authorization: Bearer $RESERVOIR_TOKEN" -H "Source: $(url from/large)" \
        -H "TransferHeaderAuthorization: Bearer $RESERVOIR_TOKEN" "$(sed -n 's/.* at \(https:[^ ]*\)\/$/\1/p' "$work/told2")/copied")"
    grep -q "success: Created" <<<"$said" || { echo "$said"; cat "$work/told2"; exit 1; }
    same "$work/from/large" "$work/root2/copied"
    kill "$other"; wait "$other" || { cat "$work/told2"; exit 1; }
    other=""
else
    echo "SKIPPED: curl is not here"
fi

echo "-- SIGTERM: what is under way is answered"
answered() { grep -c "GET /from/large 206" "$work/log" || true; }
before="$(answered)"
copy --http3 --rate 400M --streams 2 --block 32MiB "$(url from/large)" "$work/last" >"$work/said" 2>&1 & client=$!
until [ "$(answered)" -ge $((before + 2)) ]; do
    kill -0 "$client" 2>/dev/null || { cat "$work/said"; exit 1; }
    sleep 0.1
done
kill "$server"
wait "$server" || { echo "the server did not end well"; exit 1; }
wait "$client" || { cat "$work/said"; exit 1; }
same "$work/from/large" "$work/last"

root="$(dirname "$0")/../../target/roots/peers"
if [ "$(id -u)" = 0 ] && [ -x "$root/usr/bin/curl" ]; then
    echo "-- curl --http3-only"
    start
    cp "$work/cert.pem" "$root/tmp/reservoir.pem"
    cp "$work/from/large" "$root/tmp/large"
    curl() { chroot "$root" curl -sS --fail-with-body --http3-only --noproxy '*' --cacert /tmp/reservoir.pem -H "Authorization: Bearer $RESERVOIR_TOKEN" "$@"; }
    curl "https://127.0.0.1:$port/from/large" -o /tmp/got && same "$work/from/large" "$root/tmp/got"
    curl -r 1000-1999 "https://127.0.0.1:$port/from/large" | cmp - <(tail -c +1001 "$work/from/large" | head -c 1000)
    sum="$(openssl dgst -sha256 -binary "$work/from/large" | base64)"
    curl -I -H 'Want-Repr-Digest: sha-256=5' "https://127.0.0.1:$port/from/large" | tr -d '\r' | grep -qx "repr-digest: sha-256=:$sum:"
    curl -T /tmp/large "https://127.0.0.1:$port/by-curl" && same "$work/from/large" "$work/root/by-curl"
    rm -f "$root/tmp/got" "$root/tmp/large" "$root/tmp/reservoir.pem"
else
    echo "SKIPPED: curl --http3-only: no Debian 13 root, which tests/linux/quic_root.sh makes"
fi
echo "HTTP/3: ok"
