#!/usr/bin/env bash
# Tests the reservoir's server with curl and aria2, its client with nginx, and its own two ends with each other.
# usage: tests/reservoir/peers.sh PATH-OF-reservoir
set -euo pipefail
reservoir="$1"
. "$(dirname "$0")/common.sh"
served="--tpc-allow localhost --tpc-cacert $work/cert.pem"
head -c 50000000 /dev/urandom >"$work/from/large"
head -c 1000 /dev/urandom >"$work/from/sm all%"
: >"$work/from/empty"
start

echo "-- its own client"
copy "$work/from" "$(url '')"
for name in large "sm all%" empty; do same "$work/from/$name" "$work/root/from/$name"; done
copy --verify --streams 3 "$(url from/)" "$work/back"
diff -r "$work/from" "$work/back"
copy "$(url from/large)" "$(url relayed)" # from a server to a server
same "$work/from/large" "$work/root/relayed"
copy --resume --json "$(url from/)" "$work/back" | grep -q '"present":3'
[ "$(copy --json "$work/nothing" "$(url x)" 2>&1 >/dev/null; echo $?)" != 0 ] || { echo "a missing source is no failure"; exit 1; }
if RESERVOIR_TOKEN=wrong copy "$(url relayed)" "$work/x" 2>/dev/null; then echo "a wrong token is let in"; exit 1; fi

echo "-- holes, rights, attributes"
truncate -s 40000000 "$work/sparse"
printf 'in the middle' | dd of="$work/sparse" bs=1 seek=20000000 conv=notrunc status=none
chmod 640 "$work/sparse"
wanted=mode
if command -v python3 >/dev/null && python3 -c 'import os, sys; os.setxattr(sys.argv[1], b"user.origin", b"a\0b=&%")' "$work/sparse" 2>/dev/null; then
    wanted=mode,xattrs
else
    echo "SKIPPED: python3, or extended attributes here"
fi
is_kept() { # file
    same "$work/sparse" "$1"
    [ "$(stat -c %a "$1")" = 640 ] || { echo "$1 has mode $(stat -c %a "$1")"; exit 1; }
    [ "$(stat -c %b "$1")" -lt 2048 ] || { echo "$1 takes $(stat -c %b "$1") sectors"; exit 1; }
    [ "$wanted" = mode ] || python3 -c 'import os, sys; assert os.getxattr(sys.argv[1], b"user.origin") == b"a\0b=&%"' "$1"
}
copy --sparse --preserve "$wanted" "$work/sparse" "$(url sparse)" && is_kept "$work/root/sparse"
copy --sparse --preserve "$wanted" --verify "$(url sparse)" "$work/sparse-back" && is_kept "$work/sparse-back"
copy --sparse --preserve "$wanted" "$work/sparse" "$work/sparse-here" && is_kept "$work/sparse-here"
chmod 600 "$work/from/sm all%"
copy --preserve mode "$work/from/sm all%" "$(url small)" && [ "$(stat -c %a "$work/root/small")" = 600 ]

if command -v curl >/dev/null; then
    echo "-- curl"
    curl() { command curl -sS --fail-with-body --cacert "$work/cert.pem" -H "Authorization: Bearer $RESERVOIR_TOKEN" "$@"; }
    curl "$(url from/large)" -o "$work/got" && same "$work/from/large" "$work/got"
    curl -r 1000-1999 "$(url from/large)" | cmp - <(tail -c +1001 "$work/from/large" | head -c 1000)
    sum="$(openssl dgst -sha256 -binary "$work/from/large" | base64)"
    curl -I -H 'Want-Repr-Digest: sha-256=5' "$(url from/large)" | tr -d '\r' | grep -qx "repr-digest: sha-256=:$sum:"
    sum="$(openssl dgst -md5 -binary "$work/from/large" | base64)"
    curl -I -H 'Want-Digest: md5' "$(url from/large)" | tr -d '\r' | grep -qx "digest: md5=$sum"
    curl -T "$work/from/large" "$(url by-curl)" && same "$work/from/large" "$work/root/by-curl"
    head -c 30000000 "$work/from/large" >"$work/front"
    tail -c +30000001 "$work/from/large" >"$work/rest"
    whole="Repr-Digest: sha-256=:$(openssl dgst -sha256 -binary "$work/from/large" | base64):"
    if curl -T "$work/rest" -H "Content-Range: bytes 30000000-49999999/50000000" "$(url in-parts)" >/dev/null 2>&1; then
        echo "a part of an unknown file is taken"; exit 1
    fi
    curl -T "$work/rest" -H "$whole" -H "Content-Range: bytes 30000000-49999999/50000000" "$(url in-parts)"
    [ ! -e "$work/root/in-parts" ] || { echo "an upload shows before it is whole"; exit 1; }
    curl -T "$work/front" -H "$whole" -H "Content-Range: bytes 0-29999999/50000000" "$(url in-parts)"
    same "$work/from/large" "$work/root/in-parts"
    if curl -T "$work/front" -H "Reservoir-Attributes: mode=4755" "$(url wrong)" >/dev/null 2>&1; then echo "set-user-ID is taken"; exit 1; fi
    if curl -T "$work/front" -H "Digest: adler32=00000001" "$(url wrong)" >/dev/null 2>&1 || [ -e "$work/root/wrong" ]; then
        echo "a wrong digest is taken"; exit 1
    fi
    command curl -sS --cacert "$work/cert.pem" -H "Authorization: Bearer $RESERVOIR_TOKEN" --limit-rate 1M \
        -T "$work/from/large" "$(url contested)" >/dev/null 2>&1 &
    other=$!
    sleep 0.5
    status="$(command curl -sS --cacert "$work/cert.pem" -H "Authorization: Bearer $RESERVOIR_TOKEN" -o /dev/null -w '%{http_code}' \
        -T "$work/rest" "$(url contested)")" || true
    [ "$status" = 423 ] || { echo "a second writer is answered with $status"; exit 1; }
    kill "$other"; wait "$other" 2>/dev/null || true; other=""
    for _ in $(seq 50); do [ -n "$(find "$work/root" -name '.reservoir-*')" ] || break; sleep 0.1; done
    [ -z "$(find "$work/root" -name '.reservoir-*')" ] || { echo "what came of an upload that was cut off is left"; exit 1; }
    echo "-- curl has two servers copy between themselves"
    by_copy() { curl -X COPY -H "TransferHeaderAuthorization: Bearer $RESERVOIR_TOKEN" -H "$1" "$(url "$2")"; }
    by_copy "Source: $(url from/large)" pulled | grep -qx "success: Created" && same "$work/from/large" "$work/root/pulled"
    by_copy "Destination: $(url pushed)" from/large | grep -qx "success: Created" && same "$work/from/large" "$work/root/pushed"
    by_copy "Source: $(url none)" unheard-of | grep -q "^failure: "
    if by_copy "Source: https://127.0.0.1:$port/from/large" stolen >/dev/null 2>&1; then echo "a host that is not allowed is asked"; exit 1; fi
    [ "$(curl -X COPY -o /dev/null -w '%{http_code}' -H "TransferHeaderAuthorization: Bearer $RESERVOIR_TOKEN" -H "Overwrite: F" \
        -H "Destination: $(url pushed)" "$(url relayed)" || true)" = 412 ] || { echo "Overwrite: F overwrites"; exit 1; }
    by_copy "Source: $(url from)" tree | grep -q "^failure: " && [ ! -e "$work/root/tree" ]
    if by_copy "Source: $(url from/)" folder >/dev/null 2>&1; then echo "a folder is taken for a file"; exit 1; fi
    for path in ../../etc/passwd %2e%2e/%2e%2e/etc/passwd; do
        if curl --path-as-is "$(url "$path")" >/dev/null 2>&1; then echo "$path leads out"; exit 1; fi
    done
else
    echo "SKIPPED: curl is not here"
fi

if command -v aria2c >/dev/null; then
    echo "-- aria2, 8 streams"
    aria2c -q -x8 -s8 -k1M --ca-certificate="$work/cert.pem" --header="Authorization: Bearer $RESERVOIR_TOKEN" \
        -d "$work" -o by-aria2 "$(url from/large)"
    same "$work/from/large" "$work/by-aria2"
else
    echo "SKIPPED: aria2c is not here"
fi

if command -v nginx >/dev/null; then
    echo "-- nginx"
    cat >"$work/nginx.conf" <<NGINX
pid $work/nginx.pid; error_log $work/nginx.log; daemon off; user root;
events {}
http {
    access_log off; client_body_temp_path $work/body; proxy_temp_path $work/proxy;
    fastcgi_temp_path $work/fastcgi; uwsgi_temp_path $work/uwsgi; scgi_temp_path $work/scgi;
    server { listen 127.0.0.1:18444 ssl; ssl_certificate $work/cert.pem; ssl_certificate_key $work/key.pem; ssl_protocols TLSv1.3; root $work/from; }
}
NGINX
    nginx -c "$work/nginx.conf" -p "$work" 2>/dev/null &
    other=$!
    for _ in $(seq 50); do [ ! -s "$work/nginx.pid" ] || break; sleep 0.1; done
    copy --block 1MiB https://localhost:18444/large "$work/by-nginx"
    same "$work/from/large" "$work/by-nginx"
    # Requests to nginx carry no token.
    several "$port" "https://localhost:18444/large" "$(url from-nginx)" # from nginx to the reservoir, by way of the client
    same "$work/from/large" "$work/root/from-nginx"
    kill "$other"
    other=""
else
    echo "SKIPPED: nginx is not here"
fi

echo "-- tokens are read again"
printf '# nobody\n' >"$work/tokens.toml"
kill -HUP "$server"
for _ in $(seq 50); do copy --retries 0 "$(url relayed)" "$work/x" 2>/dev/null || break; sleep 0.1; done
if copy --retries 0 "$(url relayed)" "$work/x" 2>/dev/null; then echo "a token that is gone is let in"; exit 1; fi
kill "$server"
wait "$server" || { echo "SIGTERM: status $?"; exit 1; }
server=""
[ -z "$(find "$work/root" -name '.reservoir-*')" ] || { echo "unfinished files are left"; exit 1; }
echo "all as it should be"
