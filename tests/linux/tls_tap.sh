#!/usr/bin/env bash
# Tests other implementations of TLS against ours, over a TAP in a network namespace of its own: curl, openssl and wrk
# as clients of https_server, openssl s_server as the server of https_client. TLS 1.2 and 1.3, three suites, TLS on the
# CPU and on the NIC, over a wire that loses 1 %; both ends update keys.
#   tests/linux/tls_tap.sh [MIB]        the size of what is fetched; 4 by default
. "$(dirname "$0")/lib.sh"
client=${HTTPS_CLIENT:-target/release/https_client} mib=${1:-4}
name=server.nic-offload.test address=10.77.0.1
identity=$(realpath "$(dirname "$0")/../../crates/offload-testbed/identity")
mkdir "$work/site"
head -c "${mib}M" /dev/urandom >"$work/site/bulk"
hash=$(sha256sum <"$work/site/bulk" | cut -d' ' -f1)
echo "a page" >"$work/site/page"
require
for tool in openssl setpriv; do command -v "$tool" >/dev/null || skip "$tool is missing"; done

suites=(
    "TLSv1.3 TLS_AES_128_GCM_SHA256" "TLSv1.3 TLS_AES_256_GCM_SHA384" "TLSv1.3 TLS_CHACHA20_POLY1305_SHA256"
    "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256" "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384" "TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305"
)

get() { # port, what curl is to do
    local port=$1; shift
    inside curl -sS --fail --noproxy '*' --max-time 120 --cacert "$identity/ca.pem" --resolve "$name:$port:$address" "$@"
}
takes_suites=no
if curl -V | grep -q OpenSSL; then takes_suites=yes; else echo "note: this curl was built without OpenSSL, and takes no suites"; fi
chosen() { # version, suite -> how curl is told
    if [ "$takes_suites" = no ]; then
        if [ "$1" = TLSv1.3 ]; then echo "--tlsv1.3"; else echo "--tls-max 1.2"; fi
    elif [ "$1" = TLSv1.3 ]; then echo "--tlsv1.3 --tls13-ciphers $2"; else echo "--tls-max 1.2 --ciphers $2"; fi
}

# One connection: a file, two parts of the file, a page; then an upload.
fetched() { # port, version, suite
    local url=https://$name:$1 answer part=$(((mib << 20) / 3)) how
    read -ra how <<<"$(chosen "$2" "$3")"
    answer=$(get "$1" "${how[@]}" -v -w '%{num_connects}\n' -o "$work/got" "$url/bulk" \
        --next -sS --fail --noproxy '*' --max-time 120 --cacert "$identity/ca.pem" --resolve "$name:$1:$address" "${how[@]}" \
        -w '%{num_connects}\n' -o "$work/part" -r "$part-$((part + 99999))" "$url/bulk" \
        --next -sS --fail --noproxy '*' --max-time 120 --cacert "$identity/ca.pem" --resolve "$name:$1:$address" "${how[@]}" \
        -w '%{num_connects}\n' -o "$work/page" "$url/page" 2>"$work/verbose") || { cat "$work/verbose"; return 1; }
    [ "$answer" = $'1\n0\n0' ] || { echo "connections: $answer"; return 1; }
    [ "$takes_suites" = no ] || grep -q "SSL connection using $2 / $3" "$work/verbose" || { grep "SSL connection" "$work/verbose"; return 1; }
    cmp "$work/got" "$work/site/bulk" && cmp "$work/page" "$work/site/page"
    cmp "$work/part" <(tail -c "+$((part + 1))" "$work/site/bulk" | head -c 100000)
    answer=$(get "$1" "${how[@]}" -T "$work/site/bulk" "$url/")
    [ "${answer%%$'\n'*}" = "$((mib << 20)) $hash" ]
}

# Exchanges lines with a program, whose output is in $work/said.
begin() { # command, run in the namespace
    : >"$work/said"
    mkfifo "$work/words"
    ip netns exec "$namespace" "$@" <"$work/words" >"$work/said" 2>&1 & talker=$!
    exec 3>"$work/words"
}
say() { printf '%b' "$1" >&3; }
says() { # what, and waits until a record has gone with it: more would be taken for more of the same
    local before
    before=$(grep -ac '^>>>.*RecordHeader' "$work/said") || true
    say "$1" && hears '^>>>.*RecordHeader' $((before + 1))
}
hears() { # a pattern, how often
    for _ in {1..300}; do
        [ "$(grep -acE "$1" "$work/said")" -lt "$2" ] || return 0
        kill -0 "$talker" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/said"; return 1
}
end() { # the talk is over: the program may have ended by itself
    exec 3>&-
    kill "$talker" 2>/dev/null || true
    wait "$talker" 2>/dev/null || true
    rm "$work/words"
}

# Before and after `K`, and after `k`: each request is answered.
keys_updated() { # port
    local talker request="GET /page HTTP/1.1\r\nHost: $name\r\n\r\n"
    begin openssl s_client -connect "$address:$1" -servername "$name" -CAfile "$identity/ca.pem" \
        -verify_return_error -tls1_3
    hears "Verify return code: 0" 1 && say "$request" && hears "^a page" 1 &&
        say K && hears "KEYUPDATE" 1 && say "$request" && hears "^a page" 2 &&
        say k && hears "KEYUPDATE" 2 && say "$request" && hears "^a page" 3
    local status=$?
    end
    return "$status"
}

echo "curl, over a wire that loses 1 %"
start --loss 0.01
for suite in "${suites[@]}"; do
    read -r version cipher <<<"$suite"
    for port in 443 8443; do
        # shellcheck disable=SC2086
        check "$suite at port $port: what is fetched and what is sent is whole" fetched $port $suite
    done
    echo "  $version $cipher"
done
stop
check "frames were lost" [ "$(counted wire_lost)" -gt 0 ]
pin=$(openssl x509 -in "$identity/server.pem" -noout -fingerprint -sha256 | cut -d= -f2)
check "the server told its pin" grep -qi -- "--pin: ${pin//:/}\$" "$work/log"
check "the NIC sealed" [ "$(counted TlsTxRecordsDevice)" -gt 0 ]
check "the NIC opened" [ "$(counted TlsRxRecordsDevice)" -gt 0 ]
check "the NIC refused nothing" [ "$(counted TlsOffloadRefused)" = 0 ]
check "every record verified" [ "$(counted TlsDecryptError)" = 0 ]

echo "openssl s_client changes its keys, and asks the server to"
start
for port in 443 8443; do check "at port $port the talk goes on" keys_updated $port; done
stop
check "its keys were followed" [ "$(counted TlsRxRekeyOk)" = 4 ]
check "the server's changed as it asked" [ "$(counted TlsTxRekeyOk)" = 2 ]

echo "the server changes its keys every 8 records"
start --records-per-key 8 --loss 0.001
for port in 443 8443; do
    check "TLS 1.3 at port $port goes on" fetched $port TLSv1.3 TLS_AES_128_GCM_SHA256
done
stop
check "keys were changed" [ "$(counted TlsTxRekeyOk)" -gt 20 ]

if command -v wrk >/dev/null && ulimit -n 4096 2>/dev/null; then
    echo "wrk, 1000 connections"
    start
    for url in http://$address "https://$address" "https://$address:8443"; do
        inside wrk -t 1 -c 1000 -d 5s --timeout 20s "$url/page" >"$work/wrk"
        check "$url: no answer was bad" sh -c "! grep -qE 'Socket errors|Non-2xx' $work/wrk"
        check "$url: there were answers" grep -qE 'Requests/sec: +[1-9]' "$work/wrk"
        sed -n "s|^ *\([0-9]* requests in.*\)|  $url: \1|p" "$work/wrk"
    done
    stop
    check "as many were there at once" [ "$(counted TcpPassiveOpens)" -ge 3000 ]
else
    echo "SKIPPED: wrk is missing, or may not open so many sockets"
fi

# The opposite direction: an emulated host fetches from openssl s_server.
inside ip tuntap add dev nic0 mode tap
inside ip addr add 10.77.0.2/24 dev nic0
inside ip link set nic0 up
fetch() { ip netns exec "$namespace" "$client" --tap nic0 --connect 10.77.0.2 "$@" >"$work/log" 2>&1; }
from_openssl() { # version, suite, options of https_client
    local how status=0 talker version=$1 suite=$2
    shift 2
    : >"$work/said" # the last one's is not this one's
    if [ "$version" = TLSv1.3 ]; then how=(-tls1_3 -ciphersuites "$suite"); else how=(-tls1_2 -cipher "$suite"); fi
    (cd "$work/site" && exec ip netns exec "$namespace" openssl s_server -WWW -accept 4433 -cert "$identity/server.pem" \
        -key "$identity/server.key" "${how[@]}" >"$work/said" 2>&1) & talker=$!
    hears ACCEPT 1 && fetch "https://$name:4433/bulk" --loss 0.01 --out "$work/got" "$@" && cmp "$work/got" "$work/site/bulk" || status=1
    kill "$talker"
    wait "$talker" 2>/dev/null || true
    return "$status"
}
echo "from openssl s_server, over a wire that loses 1 %"
for suite in "${suites[@]}"; do
    # shellcheck disable=SC2086
    check "$suite: the file comes whole, the NIC having opened it" from_openssl $suite
    check "$suite: the NIC did" [ "$(counted TlsRxRecordsDevice)" -gt 0 ]
    # shellcheck disable=SC2086
    check "$suite: the file comes whole, the CPU having opened it" from_openssl $suite --cpu
    echo "  $suite"
done

echo "a pinned certificate"
check "its server is taken" from_openssl TLSv1.3 TLS_AES_128_GCM_SHA256 --pin "$pin"
intercepted() { ! from_openssl TLSv1.3 TLS_AES_128_GCM_SHA256 --pin "${pin//[0-9A-F]/0}" && grep -q "the connection is intercepted" "$work/log"; }
check "another one is refused" intercepted

# By hand, so that s_server can change its keys in the middle of an answer.
by_hand() { # options of https_client
    local talker fetching status=0
    begin openssl s_server -accept 4433 -cert "$identity/server.pem" -key "$identity/server.key" -tls1_3 -msg
    hears ACCEPT 1 || return 1
    fetch "https://$name:4433/page" --out "$work/got" "$@" & fetching=$!
    hears '^GET /page' 1 && says 'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\none,\n' && says 'K\n' && says 'two,\n' &&
        says 'k\n' && says 'end\n' && wait "$fetching" || status=1
    end
    [ "$status" = 0 ] && [ "$(cat "$work/got")" = $'one,\ntwo,\nend' ]
}
echo "openssl s_server changes its keys, and asks the client to"
for how in "" --cpu; do
    # shellcheck disable=SC2086
    check "the answer goes on" by_hand $how
    check "its keys were followed" [ "$(counted TlsRxRekeyOk)" = 2 ]
    check "the client's changed as it asked" [ "$(counted TlsTxRekeyOk)" = 1 ]
done
echo "done"
