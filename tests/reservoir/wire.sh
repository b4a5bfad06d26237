#!/usr/bin/env bash
# Measures usual programs over the emulated wire as a box between two network namespaces (nicbench wire): ping, iperf3,
# curl, scp, sftp, rsync; and the reservoir over HTTP/1.1 and HTTP/3, if given. Prints the theoretical rate of a
# connection without loss beside them. Programs that are not installed are skipped with a note.
#   [RESERVOIR=PATH] tests/reservoir/wire.sh NICBENCH|netem [ROUND_TRIP_MS] [RATE] [QUEUE] [SECONDS] [MIB]
# NICBENCH is built with feature tap. With netem, the box is a stock Linux in QEMU whose netem delays forwarded packets:
# QEMU interprets that guest, which keeps up with 100M. Needs root and /dev/net/tun; without them, reports so and exits
# with 77.
set -euo pipefail
box=$1 round_trip=${2:-40} rate=${3:-1G} queue=${4:-4MiB} seconds=${5:-4} mib=${6:-64}
work=$(mktemp -d) near=reservoir-near-$$ far=reservoir-far-$$ wire= others=()

skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
clean_up() {
    for one in "${others[@]}" $wire; do kill "$one" 2>/dev/null || true; done
    wait
    ip netns del "$near" 2>/dev/null || true
    ip netns del "$far" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
[ "$(id -u)" = 0 ] || skip "not root"
command -v ip >/dev/null || skip "ip (iproute2) is missing"
[ -e /dev/net/tun ] || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; } 2>/dev/null || skip "no /dev/net/tun, and it cannot be made"
(: <>/dev/net/tun) 2>/dev/null || skip "/dev/net/tun cannot be opened"
{ ip netns add "$near" && ip netns add "$far"; } 2>/dev/null || skip "no network namespace can be made"
near() { ip netns exec "$near" "$@"; }
far() { ip netns exec "$far" "$@"; }
check() { # what is claimed, command that says whether it is so
    local claim=$1; shift
    "$@" || { cat "$work/log"; echo "NOT SO: $claim"; exit 1; }
}

left=w$$a right=w$$b
if [ "$box" = netem ]; then
    linux=$(cd "$(dirname "$0")/../linux/guest" && pwd) status=0
    "$linux/build.sh" ${GUEST:+"$GUEST"} || status=$?
    [ "$status" = 0 ] || exit "$status"
    cat >"$work/guest" <<'GUEST'
modprobe -a sch_netem cls_matchall act_mirred
read -r one other <<<"$(cd /sys/class/net && echo e*)"
join() { # a card, and where what comes in there goes on, later
    ip link set "$1" up promisc on
    tc qdisc add dev "$1" root netem delay "${DELAY}us" rate "$RATE" limit "$PACKETS"
    tc qdisc add dev "$1" clsact
    tc filter add dev "$1" ingress matchall action mirred egress redirect dev "$2"
}
join "$one" "$other" && join "$other" "$one" && echo "they are joined"
# Runs until told to end.
tcpdump -Z root -q -c 1 -i "$one" udp port 9 >/dev/null 2>&1
for card in "$one" "$other"; do
    tc -s qdisc show dev "$card" root | awk '/Sent/ { print "wire_rx_packets", $4; print "wire_queue_drops", $7 + 0 }'
done
GUEST
    bits=$(awk -v rate="$rate" 'BEGIN { printf "%d", rate * (rate ~ /G/ ? 1e9 : rate ~ /M/ ? 1e6 : 1) }')
    # Data in flight is in the same queue.
    packets=$(awk -v queue="$(numfmt --from=auto "${queue%B}")" -v bits="$bits" -v r="$round_trip" \
        'BEGIN { printf "%d", (queue + bits / 8 * r / 2000) / 1500 }')
    cards=()
    for end in "$left" "$right"; do
        cards+=(-netdev "tap,id=$end,ifname=$end,script=no,downscript=no,vnet_hdr=off" -device "virtio-net-pci,netdev=$end")
    done
    "$linux/boot.sh" -t 900 -e "DELAY=$((round_trip * 500))" -e "RATE=${bits}bit" -e "PACKETS=$packets" "$work/guest" "${cards[@]}" >"$work/log" 2>&1 & wire=$!
else
    "$box" wire --tap "$left" --tap "$right" --delay "$((round_trip * 500))us" --rate "$rate" --queue "$queue" >"$work/log" 2>&1 & wire=$!
fi
until grep -q "are joined" "$work/log"; do
    kill -0 "$wire" 2>/dev/null || { cat "$work/log"; exit 1; }
    sleep 0.05
done
ip link set "$left" netns "$near"
ip link set "$right" netns "$far"
near ip link set lo up; far ip link set lo up
near ip link set "$left" up; far ip link set "$right" up
near ip addr add 10.78.0.1/24 dev "$left"
far ip addr add 10.78.0.2/24 dev "$right"
# Windows that a long path needs, if the system allows them to be set.
for end in near far; do
    $end sh -c 'echo "4096 131072 1073741824" >/proc/sys/net/ipv4/tcp_rmem; echo "4096 131072 1073741824" >/proc/sys/net/ipv4/tcp_wmem' 2>/dev/null ||
        echo "note: windows stay as the system has them"
done

if command -v ping >/dev/null; then
    near ping -q -c 5 -i 0.2 -W 5 10.78.0.2 >"$work/ping"
    measured=$(sed -n 's/^rtt .* = \([0-9.]*\)\/.*/\1/p' "$work/ping")
    echo "round trip: $measured ms of $round_trip"
    check "the least round trip is the wire's" awk -v m="$measured" -v r="$round_trip" 'BEGIN { exit !(m >= r && m < r + 20) }'
else
    echo "SKIPPED: ping is missing"
fi

# A new connection with two round trips of handshakes, and windows that double from ten segments until they fill the
# line.
awk -v r="$round_trip" -v rate="$rate" -v mib="$mib" 'BEGIN {
    rate *= rate ~ /G/ ? 1e9 : rate ~ /M/ ? 1e6 : 1; bytes = mib * 1048576; trip = r / 1000; line = rate * trip / 8
    for (window = 14480; bytes > window && window < line; window *= 2) { bytes -= window; took += trip }
    took += 2 * trip + bytes * 8 / rate
    printf "the law, %d MiB over one new connection: %.3f Gb/s\n", mib, mib * 8.388608e6 / took / 1e9 }'
gbps() { awk -v bytes="$1" -v seconds="$2" 'BEGIN { printf "%.3f Gb/s", bytes * 8 / seconds / 1e9 }'; }
if command -v iperf3 >/dev/null; then
    ip netns exec "$far" iperf3 -s -1 >/dev/null 2>&1 & others+=($!)
    sleep 0.5
    near iperf3 -c 10.78.0.2 -t "$seconds" --json >"$work/iperf3"
    echo "iperf3, $seconds s: $(awk '/"sum_received"/ { sum = 1 } sum && /bits_per_second/ { printf "%.3f Gb/s", $2 / 1e9; exit }' "$work/iperf3")"
else
    echo "SKIPPED: iperf3 is missing"
fi

head -c "${mib}M" /dev/urandom >"$work/file"
hash=$(sha256sum <"$work/file")
if command -v curl >/dev/null && command -v python3 >/dev/null; then
    (cd "$work" && exec ip netns exec "$far" python3 -m http.server 8080 --bind 10.78.0.2) >/dev/null 2>&1 & others+=($!)
    near curl -sS --noproxy '*' --retry 10 --retry-connrefused --retry-delay 1 -o "$work/got" -w '%{size_download} %{time_total}\n' http://10.78.0.2:8080/file >"$work/curl"
    read -r bytes took <"$work/curl"
    echo "curl, $mib MiB, not encrypted: $(gbps "$bytes" "$took")"
    check "what curl fetched is whole" [ "$(sha256sum <"$work/got")" = "$hash" ]
else
    echo "SKIPPED: curl or python3 is missing"
fi

if [ -x /usr/sbin/sshd ] && command -v scp >/dev/null; then
    ssh-keygen -q -t ed25519 -N '' -f "$work/host"; ssh-keygen -q -t ed25519 -N '' -f "$work/user"
    mkdir -p /run/sshd
    ip netns exec "$far" /usr/sbin/sshd -D -f /dev/null -o "Subsystem=sftp internal-sftp" -p 2222 -h "$work/host" -o "AuthorizedKeysFile=$work/user.pub" -o StrictModes=no -o UsePAM=no -o PermitRootLogin=yes >/dev/null 2>&1 & others+=($!)
    sleep 1
    options=(-q -i "$work/user" -o StrictHostKeyChecking=no -o "UserKnownHostsFile=$work/known" -o Ciphers=aes128-gcm@openssh.com)
    began=$(date +%s%N)
    near scp -P 2222 "${options[@]}" "root@10.78.0.2:$work/file" "$work/copied"
    echo "scp, $mib MiB, aes128-gcm: $(gbps $((mib << 20)) "$(awk -v n=$(($(date +%s%N) - began)) 'BEGIN { print n / 1e9 }')")"
    check "what scp copied is whole" [ "$(sha256sum <"$work/copied")" = "$hash" ]
    if command -v sftp >/dev/null; then
        rm "$work/copied"
        began=$(date +%s%N)
        near sftp -P 2222 "${options[@]}" "root@10.78.0.2:$work/file" "$work/copied" >/dev/null
        echo "sftp, $mib MiB, aes128-gcm: $(gbps $((mib << 20)) "$(awk -v n=$(($(date +%s%N) - began)) 'BEGIN { print n / 1e9 }')")"
        check "what sftp copied is whole" [ "$(sha256sum <"$work/copied")" = "$hash" ]
    else
        echo "SKIPPED: sftp is missing"
    fi
    if command -v rsync >/dev/null; then
        rm "$work/copied"
        began=$(date +%s%N)
        near rsync -e "ssh -p 2222 ${options[*]}" "root@10.78.0.2:$work/file" "$work/copied"
        echo "rsync over ssh, $mib MiB, aes128-gcm: $(gbps $((mib << 20)) "$(awk -v n=$(($(date +%s%N) - began)) 'BEGIN { print n / 1e9 }')")"
        check "what rsync copied is whole" [ "$(sha256sum <"$work/copied")" = "$hash" ]
    else
        echo "SKIPPED: rsync is missing"
    fi
else
    echo "SKIPPED: sshd or scp is missing"
fi

if [ -n "${RESERVOIR-}" ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=far -addext basicConstraints=critical,CA:FALSE \
        -addext subjectAltName=IP:10.78.0.2 -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
    ip netns exec "$far" "$RESERVOIR" serve --http3 --http3-window 1GiB --listen 10.78.0.2:8443 --root "$work" --cert "$work/cert.pem" --key "$work/key.pem" --open-to-all >"$work/served" 2>&1 & others+=($!)
    until grep -q https "$work/served"; do sleep 0.05; done
    for how in "--streams 1" "--streams 8" "--streams 8 --http3 --http3-window 1GiB"; do
        began=$(date +%s%N)
        # shellcheck disable=SC2086
        near "$RESERVOIR" copy $how --block 1MiB --cacert "$work/cert.pem" https://10.78.0.2:8443/file "$work/arrived" >/dev/null 2>&1
        echo "reservoir, $mib MiB, $how: $(gbps $((mib << 20)) "$(awk -v n=$(($(date +%s%N) - began)) 'BEGIN { print n / 1e9 }')")"
        check "what the reservoir copied is whole" [ "$(sha256sum <"$work/arrived")" = "$hash" ]
    done
fi

if [ "$box" = netem ]; then near bash -c 'echo >/dev/udp/10.78.0.2/9'; else kill "$wire"; fi
status=0; wait "$wire" || status=$?
wire=
check "the box ends well" [ "$status" = 0 ]
counted() { awk -v name="$1" '$1 == name { sum += $2 } END { print sum + 0 }' "$work/log"; }
check "frames went both ways over it" [ "$(counted wire_rx_packets)" -gt 1000 ]
echo "dropped at the queue: $(counted wire_queue_drops)"
