#!/usr/bin/env bash
# Tests unmodified keying daemons that key our NIC: strongSwan or Libreswan of Debian 13. A stock guest runs two of
# them, each in a network namespace with its own network card and root: the peer, whose kernel does ESP, and the daemon
# of the emulated host, beside which `linux-mirror sa` runs. The daemon has the emulated host's address; a front passes
# IKE to it and nothing but IKE from it, so its kernel carries no packet. The peer fetches files over the common wire:
# transport and tunnel mode, AES-GCM with both key lengths, ESN, PSK and certificates, over IPv4, IPv6 and in UDP as
# behind a NAT, with either end as initiator; keys change throughout a transfer; agent and daemon are killed and
# restarted; so is the peer, which the daemon detects as dead. tshark sees only ESP. Needs root, because debootstrap
# makes the roots.
#   tests/linux/ike_guest.sh [HOST-DAEMON [PEER-DAEMON]]     strongswan or libreswan; strongswan by default
# Environment: KIB, how much is fetched while keys change (512, for QEMU interprets the guest), at RATE (20K a second), and
# REKEY, how often they do (4s).
. "$(dirname "$0")/guest/lib.sh"
server=$(realpath -e "${HTTPS_SERVER:-target/release/https_server}")
agent=$(realpath -e "${LINUX_MIRROR:-target/x86_64-unknown-linux-gnu/release/linux-mirror}")
kib=${KIB:-512}
declare -A daemons=([host]=${1:-strongswan} [peer]=${2:-strongswan})
roots=$(realpath -m "$here/../../target/roots")
for daemon in "${daemons[@]}"; do
    case $daemon in
    strongswan) packages="strongswan-swanctl charon-systemd libcharon-extra-plugins libstrongswan-extra-plugins libstrongswan-standard-plugins" ;;
    libreswan) packages="libreswan libnss3-tools" ;;
    *) echo "${0##*/}: there is no daemon $daemon here"; exit 2 ;;
    esac
    # shellcheck disable=SC2086
    "$here/guest/root.sh" "$daemon" $packages iproute2 iputils-ping procps || status=$?
    [ "$status" = 0 ] || exit "$status"
done

mkdir "$work/site"
head -c 64K /dev/urandom >"$work/site/bulk"
head -c "${kib}K" /dev/urandom >"$work/site/long"
for name in bulk long; do sha256sum <"$work/site/$name" | cut -d' ' -f1 >"$work/$name.sum"; done
# An authority, and a certificate for each end.
certificate() { # file, name, more
    openssl ecparam -name prime256v1 -genkey -noout -out "$work/$1.key" 2>/dev/null
    openssl req -new -key "$work/$1.key" -subj "/CN=$2" -out "$work/$1.csr" 2>/dev/null
}
certificate ca authority
openssl req -x509 -key "$work/ca.key" -subj /CN=authority -days 30 -out "$work/ca.pem" 2>/dev/null
for side in host peer; do
    certificate $side $side.test
    openssl x509 -req -in "$work/$side.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 30 \
        -extfile <(echo "subjectAltName=DNS:$side.test") -out "$work/$side.pem" 2>/dev/null
    openssl pkcs12 -export -inkey "$work/$side.key" -in "$work/$side.pem" -name $side -passout pass: -out "$work/$side.p12"
done
tar -C "$work" -cf "$work/certificates.tar" ca.pem {host,peer}.{pem,key,p12}

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
modprobe -a esp4 esp6 xfrm_user virtio_console ext4 virtio_blk
# Modules that the kernel loads and tests at first use delay a daemon for longer than its peer waits, if QEMU is slow.
zeros() { printf '0x%0*d' "$1" 0; }
for aead in "rfc4106(gcm(aes)) $(zeros 40)" "rfc4106(gcm(aes)) $(zeros 72)" "rfc7539esp(chacha20,poly1305) $(zeros 72)"; do
    # shellcheck disable=SC2086
    ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000 mode transport aead $aead 128
    ip xfrm state flush
done
declare -A disk=([host]=/dev/vda [peer]=/dev/vdb)
for side in host peer; do
    until [ -b ${disk[$side]} ]; do sleep 0.1; done
    mkdir -p /mnt/$side
    mount -o noatime ${disk[$side]} /mnt/$side
    for folder in proc dev sys; do mount --rbind /$folder /mnt/$side/$folder; done
    mount -t tmpfs none /mnt/$side/run
done
cd /guest
chmod +x linux-mirror
failed=0
not_so() { echo "NOT SO: $*"; failed=1; }
until port=/dev/$(basename "$(dirname "$(grep -lx sas /sys/class/virtio-ports/*/name)")") && [ -c "$port" ]; do sleep 0.1; done

# The peer's card has the address given by QEMU; the daemon's card has the emulated host's.
ip netns add peer
ip netns add host
for card in eth0 eth1; do
    side=$([ "$(cat /sys/class/net/$card/address)" = "$HOST_MAC" ] && echo host || echo peer)
    ip link set $card netns $side name eth0
done
in_peer() { ip netns exec peer "$@"; }
in_host() { ip netns exec host "$@"; }
for side in host peer; do
    ip -n $side link set lo up
    ip -n $side addr add 10.77.0.$([ $side = host ] && echo 1 || echo 2)/24 dev eth0
    ip netns exec $side sh -c "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad"
    ip -n $side addr add fd77::$([ $side = host ] && echo 1 || echo 2)/64 dev eth0 nodad
    ip -n $side link set eth0 up
done
host_address=10.77.0.1 peer_address=10.77.0.2 in_udp=no

declare -A daemon=([host]=$HOST_DAEMON [peer]=$PEER_DAEMON) pids
for one in "${daemon[@]}"; do . ./ike_"$one".sh; done
ike() { # side, what, more
    local side=$1 what=$2; shift 2
    "${daemon[$side]}_$what" "$side" "$@"
}
start() { ike "$1" start && pids[$1]=$daemon_pid; } # side
connection() { # mode, suite, ESN, authentication, and which side changes keys after how long: at both sides
    local side
    ike host connection peer $host_address $peer_address "$1" "$2" "$3" "$4" "$([ host = "${5:-}" ] && echo "$6")"
    ike peer connection host $peer_address $host_address "$1" "$2" "$3" "$4" "$([ peer = "${5:-}" ] && echo "$6")"
}
logs() { for side in host peer; do echo "   -- log of $side"; ike $side log "$1"; done; }
fetch() { # file, more
    local host=$host_address
    [ "${host#*:}" = "$host" ] || host="[$host]"
    in_peer curl -sS --fail --globoff --max-time 120 ${2:-} -o got "http://$host/$1" && [ "$(sha256sum <got)" = "$(cat "$1.sum")  -" ]
}
has_sas() { in_peer ip xfrm state | grep 'proto esp' >/dev/null; } # one that ends early breaks the pipe
up() { # side
    ike "$1" up || return 1
    # The responder may need longer than the initiator.
    for attempt in $(seq 100); do ! has_sas || break; sleep 0.1; done
    has_sas || return 1
    for attempt in $(seq 50); do
        if in_peer ping -c 1 -W 1 $host_address >/dev/null; then return 0; fi
    done
    return 1
}
down() {
    ike host down || true
    for attempt in $(seq 50); do has_sas || return 0; sleep 0.1; done
}
ip netns exec host ./linux-mirror sa "$port" >agent.log 2>&1 & agent=$!
for side in host peer; do start $side; done
echo "-- the emulated host: $(ike host version); the peer: $(ike peer version)"

case_of() { # mode, suite, ESN, authentication, initiator
    echo "-- $1, $2, $3, $4, the ${5/host/emulated host} asks"
    connection "$1" "$2" "$3" "$4"
    up "$5" && fetch bulk || { not_so "$*"; logs 15; }
    in_peer ip xfrm state | awk '/^src/ { ends = $2 ~ /:/ ? "IPv6 " : "" } /mode/ { mode = $NF } /replay-window/ { flags = $0; sub(/.*flag /, "", flags) } /aead/ { aead = $2 " " (length($3) - 2) / 2 " bytes" (flags ~ /esn/ ? ", ESN" : "") } /encap type/ { aead = aead ", in UDP" } /anti-replay.*context/ { print "   " ends mode, aead }' | sort -u
    [ $in_udp = no ] || in_peer ip xfrm state | grep 'encap type espinudp' >/dev/null || not_so "ESP is in UDP"
    down
}
for initiator in peer host; do
    case_of transport aes128 no-esn psk $initiator
    case_of transport aes256 esn pubkey $initiator
    case_of tunnel aes128 esn psk $initiator
    case_of tunnel aes256 no-esn pubkey $initiator
    case_of tunnel chacha20 no-esn psk $initiator
    host_address=fd77::1 peer_address=fd77::2
    case_of transport aes256 esn psk $initiator
    case_of tunnel aes128 no-esn pubkey $initiator
    host_address=10.77.0.1 peer_address=10.77.0.2 in_udp=yes
    case_of tunnel aes256 esn psk $initiator
    case_of transport aes128 no-esn psk $initiator
    in_udp=no
done

# strongSwan's kernel policies name an SA, which for a moment is not installed yet.
lost_by_the_peer() { in_peer awk '$1 == "XfrmAcquireError" { print $2 }' /proc/net/xfrm_stat; }
# Only one end rekeys, because stock daemons that rekey at the same moment lose packets by themselves.
for side in host peer; do
    echo "-- the ${side/host/emulated host\'s daemon} changes keys, while a file is under way"
    down
    connection tunnel aes256 esn psk $side "$REKEY"
    before=$(ike peer children) own=$(lost_by_the_peer)
    up peer
    fetch long "--limit-rate $RATE" & fetching=$!
    ip netns exec peer ping -i 0.2 -w 100 10.77.0.1 >pings & pinging=$! # no function in between: ping has this number
    wait $fetching || not_so "a file while keys change"
    kill -INT $pinging
    wait $pinging || true
    changes=$(($(ike peer children) - before - 1))
    # The last rekeying may have been in progress.
    read -r answers missing < <(sed -n 's/.*seq=\([0-9]*\).*/\1/p' pings | sort -nu | awk 'NR == 1 { first = $1 } END { print NR, $1 - first + 1 - NR }')
    own=$(($(lost_by_the_peer) - own))
    echo "   $answers answers, $missing missing, of which the peer's kernel sent $own never; $changes successors"
    # As many as the transfer has time for: 25 s with 512 KiB.
    [ "$answers" -gt 20 ] && [ "$missing" -le "$own" ] || not_so "no packet is lost when keys change"
    [ "$changes" -ge "$((KIB >= 512 ? 3 : 1))" ] || not_so "keys changed"
    in_peer grep -v ' *0$' /proc/net/xfrm_stat | sed 's/^/   the peer: /' || true
done

echo "-- the mirrored kernel carries nothing"
if in_host ping -c 2 -W 1 10.77.0.2 >/dev/null; then not_so "its pings go nowhere"; fi
own=$(in_host ip -s xfrm state | grep -c 'mode tunnel')
[ "$own" -ge 2 ] || not_so "it has SAs by which it would send"
fetch bulk || not_so "the emulated host goes on by the same SAs"

echo "-- the agent is killed and comes back"
kill -9 $agent
wait $agent || true
fetch bulk || not_so "SAs stay without an agent"
ip netns exec host ./linux-mirror sa "$port" >>agent.log 2>&1 & agent=$!
fetch bulk || not_so "and stay when it is back"

echo "-- the peer is killed: the emulated host's daemon finds it dead, and its SAs go"
kill -9 "${pids[peer]}"
wait "${pids[peer]}" || true
in_peer ip xfrm state flush
in_peer ip xfrm policy flush
began=$SECONDS
own_sas() { in_host ip xfrm state | grep -c 'proto esp' || true; }
for attempt in $(seq 600); do [ "$(own_sas)" != 0 ] || break; sleep 0.1; done
[ "$(own_sas)" = 0 ] || { not_so "a dead peer has no SAs"; ike host log 15; }
echo "   after $((SECONDS - began)) s"
echo "-- and comes back"
start peer
connection tunnel aes256 esn psk
up peer || { not_so "the peer is back"; logs 15; }
fetch bulk || not_so "traffic under what the peer agreed on"

echo "-- the daemon is killed and comes back"
kill -9 "${pids[host]}"
wait "${pids[host]}" || true
fetch bulk || not_so "traffic goes on without the daemon"
start host
connection tunnel aes256 esn psk
up host || not_so "the daemon is back"
fetch bulk || not_so "traffic under what it agreed on"
cat agent.log
exit $failed
SCRIPT

(cd "$work" && exec "$server" site --mode http --dgram port guest --mirror sas --daemon beside linux --pcap wire.pcapng >log 2>&1) & pid=$!
until grep -q '^Ctrl-C' "$work/log" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "the server did not start"; exit 1; }
    sleep 0.05
done
mac=02:00:00:00:00:01
(cd "$work" && "$here/guest/boot.sh" -t 900 -m 1536 -e "HOST_MAC=$mac" -e "HOST_DAEMON=${daemons[host]}" -e "PEER_DAEMON=${daemons[peer]}" -e "REKEY=${REKEY:-4s}" -e "KIB=$kib" -e "RATE=${RATE:-20K}" \
    -f "$agent" -f bulk.sum -f long.sum -f certificates.tar -f "$here/guest/ike_strongswan.sh" -f "$here/guest/ike_libreswan.sh" script \
    -netdev dgram,id=n0,local.type=unix,local.path=guest,remote.type=unix,remote.path=port -device virtio-net-pci,netdev=n0 \
    -netdev dgram,id=n1,local.type=unix,local.path=linux,remote.type=unix,remote.path=beside -device virtio-net-pci,netdev=n1,mac=$mac \
    -chardev socket,id=sas,path=sas -device virtio-serial-pci -device virtserialport,chardev=sas,name=sas \
    -drive "file=$roots/${daemons[host]}.ext4,if=none,id=host,format=raw,snapshot=on" -device virtio-blk-pci,drive=host \
    -drive "file=$roots/${daemons[peer]}.ext4,if=none,id=peer,format=raw,snapshot=on" -device virtio-blk-pci,drive=peer) || status=$?
kill "$pid"
wait "$pid" || true
pid=
grep -E '^(mirror|front|Xfrm|ipsec)' "$work/log" || true
[ "$status" = 0 ] || exit "$status"
counted() { awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }' "$work/log"; }
[ "$(counted front_blocked_esp)" -gt 0 ] || { echo "NOT SO: the mirrored kernel tried to send ESP, and it was blocked"; exit 1; }
# As responder, Libreswan sends with a successor that the initiator cannot have yet. The host waits for its SA.
[ "$(counted XfrmInNoStates)" = 0 ] || { echo "NOT SO: every packet found its SA"; exit 1; }
[ "$(counted ipsec_packet_tx_pkts)" -gt 100 ] || { echo "NOT SO: the NIC made ESP"; exit 1; }
if command -v tshark >/dev/null; then
    plain=$(tshark -r "$work/wire.pcapng" -Y '(ip || ipv6) && !esp && !isakmp && !udpencap.nat_keepalive && !(icmpv6.type >= 130 && icmpv6.type <= 143)' 2>/dev/null | tee "$work/plain" | wc -l)
    echo "tshark: $(tshark -r "$work/wire.pcapng" -Y esp 2>/dev/null | wc -l) packets of ESP, $plain of anything else"
    [ "$plain" = 0 ] || { head "$work/plain"; echo "NOT SO: the emulated host sends and gets ESP only"; exit 1; }
fi
echo done
