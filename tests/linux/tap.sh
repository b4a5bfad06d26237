#!/usr/bin/env bash
# Tests Linux's TCP against the emulated host's, over a TAP in a network namespace of its own: bulk data in each
# direction and both at once, over IPv4 and IPv6, over wires that lose, reorder, duplicate and corrupt packets; eight
# streams in each direction at once; 10000 connections opened and closed at once; iperf3; TLS by the NIC.
#   tests/linux/tap.sh [MIB]        how much goes each way; 64 by default
. "$(dirname "$0")/lib.sh"
mib=${1:-64}
mkdir "$work/site"
head -c "${mib}M" /dev/urandom >"$work/site/bulk"
hash=$(sha256sum <"$work/site/bulk" | cut -d' ' -f1)
echo "a page" >"$work/site/a page.txt"
require
tap_server=${TAP_SERVER:-${server%/*}/tap_server} iperf3=
[ ! -x "$tap_server" ] || iperf3=$(command -v iperf3 || true)

get() { inside curl -sS --fail --noproxy '*' --max-time 900 "$@"; }
down() { get "${tls[@]}" -w '  down %{speed_download} bytes/s\n' -o "$work/got" "$url/bulk" && cmp "$work/got" "$work/site/bulk"; }
up() {
    local answer
    answer=$(get "${tls[@]}" -w '  up %{speed_upload} bytes/s\n' -T "$work/site/bulk" "$url/")
    [ "${answer%%$'\n'*}" = "$((mib << 20)) $hash" ] && echo "${answer#*$'\n'}"
}
both() { down & local other=$!; up && wait "$other"; }
streams() { # eight each way at once, as iperf would have it
    local all=() one failed=0 began=$(date +%s%N)
    for one in 1 2 3 4 5 6 7 8; do
        get -o /dev/null "$url/bulk" & all+=($!)
        get -o /dev/null -T "$work/site/bulk" "$url/" & all+=($!)
    done
    for one in "${all[@]}"; do wait "$one" || failed=1; done
    echo "  eight streams each way: $(((16 * mib << 20) * 1000 / (($(date +%s%N) - began) / 1000000))) bytes/s in all"
    return $failed
}

bulk() { # what kind of wire, options
    echo "$1"; shift
    start "$@"
    check "the file arrives whole" down
    check "what is sent there arrives whole" up
    check "both at once do" both
    stop
}
tls=() url=http://10.77.0.1

bulk "a clean wire"
check "the kernel handed over super-segments" [ "$(counted attach_rx_super_segments)" -gt 0 ]
check "the kernel was given super-segments" [ "$(counted attach_tx_super_segments)" -gt 0 ]
check "nothing the kernel handed over was malformed" [ "$(counted attach_rx_malformed)" = 0 ]
check "no checksum was wrong" [ "$(counted rx_csum_bad)" = 0 ]
echo "eight streams each way at once"
start
check "all of them end well" streams
stop
bulk "a wire that loses 1 %" --loss 0.01
check "frames were lost" [ "$(counted wire_lost)" -gt 0 ]
bulk "a wire that loses 5 %" --loss 0.05
bulk "a wire that reorders 5 %, doubles and corrupts 0.1 %" --reorder 0.05 --duplicate 0.001 --corrupt 0.001
check "frames were corrupted, and found out" [ "$(counted rx_csum_bad)" -gt 0 ]
bulk "a wire of 10 Gb/s and 2 ms, MTU 9000" --rate 10G --delay 1ms --mtu 9000

echo "iperf3, to the example tap_server"
if [ -n "$iperf3" ]; then
    server=$tap_server start --loss 0.001
    for how in "-n ${mib}M" "-n ${mib}M -R" "-t 1 --bidir" "-n ${mib}M -P 4" "-t 1 -P 4 -R -O 1" "-t 1 -C reno -R"; do
        check "iperf3 $how comes to its end" inside timeout 300 iperf3 -c 10.77.0.1 $how --json >"$work/iperf3"
        awk -v how="$how" '/"sum_received"/ { sum = 1 } sum && /bits_per_second/ { printf "  iperf3 %s: %d bytes/s\n", how, $2 / 8; exit }' "$work/iperf3"
    done
    check "UDP is refused" grep -q "not implemented" <(inside iperf3 -c 10.77.0.1 -u -t 1 2>&1)
    check "and the next test is not hurt" inside timeout 60 iperf3 -c 10.77.0.1 -t 1 >/dev/null
    check "its page is served as well" grep -qx "a page.txt" <(get http://10.77.0.1/)
    stop
else
    echo "SKIPPED: iperf3 is missing, or the example tap_server"
fi

echo "1000 connections, each for one request"
start
if command -v ping >/dev/null; then
    check "the emulated host answers a ping" inside ping -q -c 3 -i 0.2 -W 5 10.77.0.1
else
    echo "SKIPPED: ping is missing"
fi
check "every one is answered" [ "$(get -H 'Connection: close' 'http://10.77.0.1/a%20page.txt?[1-1000]' | wc -l)" = 1000 ]
check "names are listed" grep -qx "a page.txt" <(get http://10.77.0.1/)
check "what is not there is not found" [ "$(inside curl -s --noproxy '*' -o /dev/null -w '%{http_code}' http://10.77.0.1/none)" = 404 ]
check "nothing outside the folder is given" \
    [ "$(inside curl -s --noproxy '*' -o /dev/null -w '%{http_code}' --path-as-is http://10.77.0.1/../../../../etc/passwd)" = 404 ]
check "a port where nobody listens refuses" [ "$(inside curl -s --noproxy '*' --max-time 10 http://10.77.0.1:81/ || echo $?)" = 7 ]
stop
check "there were as many connections" [ "$(counted TcpPassiveOpens)" -ge 1000 ]

many() { # opens connections to $2 until there are $1 at once, asks for a page on each, closes them all
    local sockets=() socket line answered=0
    ulimit -n $(($1 + 100))
    for ((at = 0; at < $1; at++)); do
        exec {socket}<>/dev/tcp/$2/80
        sockets+=("$socket")
    done
    for socket in "${sockets[@]}"; do printf 'GET /a%%20page.txt HTTP/1.1\r\nHost: it\r\n\r\n' >&"$socket"; done
    for socket in "${sockets[@]}"; do
        read -r -t 60 line <&"$socket"
        [ "$line" != $'HTTP/1.1 200 OK\r' ] || answered=$((answered + 1))
    done
    for socket in "${sockets[@]}"; do exec {socket}>&-; done
    echo "$answered"
}
weight() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$pid/status"; }

stalled() { # opens $1 connections to port $2, asks for the big file on each, reads nothing, waits until the server closes them
    local sockets=() socket
    for ((at = 0; at < $1; at++)); do
        exec {socket}<>/dev/tcp/10.77.0.1/"$2"
        printf 'GET /bulk HTTP/1.1\r\nHost: it\r\n\r\n' >&"$socket"
        sockets+=("$socket")
    done
    sleep "$3"
}
echo "100 clients that do not read"
start --max-memory 64MiB --stall-timeout 5
before=$(weight)
inside bash -c "$(declare -f stalled); stalled 100 80 20" &
sleep 4
check "they have a bounded share of memory" [ "$(weight)" -lt $((before + (64 << 10) + 100 * 512)) ]
wait $!
stop
check "they were given up" [ "$(counted http_timed_out)" = 100 ]

echo "a TAP that is deleted"
start
inside ip link del nic0
status=0
wait "$pid" || status=$?
pid=
check "the server ends, with status 1" [ "$status" = 1 ]
check "it says why" grep -q "nic0 is gone" "$work/log"

echo "10000 connections at once, three times"
start --max-connections 20000 --idle-timeout 600
# Each connection leaves its port in TIME-WAIT at Linux's end.
inside sysctl -qw net.ipv4.ip_local_port_range="10000 65000"
weights=()
for _ in 1 2 3; do
    began=$(date +%s%N)
    check "every one is open, and answered" [ "$(inside bash -c "$(declare -f many); many 10000 10.77.0.1")" = 10000 ]
    weights+=("$(weight)")
    echo "  $((($(date +%s%N) - began) / 1000000)) ms, the server weighs ${weights[-1]} KiB"
done
# Later connections reuse the memory of the first ones; an allocator with several threads is not exact about that.
check "none of them weighs anything afterwards" [ "${weights[2]}" -lt $((weights[1] + weights[0] / 8)) ]
stop
check "there were as many connections" [ "$(counted TcpPassiveOpens)" -ge 30000 ]

url=https://server.nic-offload.test
tls=(--cacert crates/offload-testbed/identity/ca.pem --resolve server.nic-offload.test:443:10.77.0.1)
bulk "TLS on the NIC, on a wire that loses 0.1 %" --loss 0.001
check "the NIC encrypted" [ "$(counted tx_tls_encrypted_bytes)" -gt $((mib << 20)) ]
check "the NIC decrypted" [ "$(counted rx_tls_decrypted_bytes)" -gt 0 ]

if [ "$(cat /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null)" = 0 ]; then
    tls=(-g) url='http://[fd77::1]'
    bulk "IPv6, a clean wire"
    check "it was IPv6" [ "$(counted Ip6InReceives)" -gt 1000 ]
    bulk "IPv6, a wire that loses 5 %" --loss 0.05
    bulk "IPv6, a wire that reorders 5 %" --reorder 0.05
    bulk "IPv6, a wire that loses 1 %, reorders 1 % and corrupts 0.1 %" --loss 0.01 --reorder 0.01 --corrupt 0.001
    check "it was IPv6" [ "$(counted Ip6InReceives)" -gt 1000 ]
    check "frames were corrupted, and found out" [ "$(counted rx_csum_bad)" -gt 0 ]
    url=https://server.nic-offload.test
    tls=(-g --cacert crates/offload-testbed/identity/ca.pem --resolve 'server.nic-offload.test:443:[fd77::1]')
    bulk "IPv6, TLS on the NIC, on a wire that loses 0.1 %" --loss 0.001
    check "it was IPv6" [ "$(counted Ip6InReceives)" -gt 1000 ]
    check "the NIC encrypted" [ "$(counted tx_tls_encrypted_bytes)" -gt $((mib << 20)) ]
    check "the NIC decrypted" [ "$(counted rx_tls_decrypted_bytes)" -gt 0 ]
    check "the kernel handed over super-segments" [ "$(counted attach_rx_super_segments)" -gt 0 ]
    start --max-connections 20000 --idle-timeout 600
    if command -v ping >/dev/null; then
        check "the emulated host answers a ping" inside ping -6 -q -c 3 -i 0.2 -W 5 fd77::1
        check "and one in fragments" inside ping -6 -q -c 3 -i 0.2 -W 5 -s 4000 fd77::1
    fi
    check "10000 connections over IPv6 are open at once, and answered" \
        [ "$(inside bash -c "$(declare -f many); many 10000 fd77::1")" = 10000 ]
    check "a port where nobody listens refuses" [ "$(inside curl -s -g --noproxy '*' --max-time 10 'http://[fd77::1]:81/' || echo $?)" = 7 ]
    stop
else
    echo "SKIPPED: this kernel has no IPv6"
fi

echo "without the right to open it"
status=0
setpriv --reuid 65534 --regid 65534 --clear-groups "$server" / --tap nic0 >"$work/log" 2>&1 || status=$?
check "is told apart" [ "$status" = 2 ]
check "is told clearly" grep -q "not allowed to open the TAP nic0" "$work/log"
echo "done: $mib MiB each way over every wire"
