#!/usr/bin/env bash
# Tests the switch with stock Linux guests in QEMU as tenants on virtual functions of our NIC, and one more guest at the
# other end of the wire, where `ip link add type vxlan` (or gretap, or geneve) and `ip xfrm` (transport mode on the
# tunnel's packets, AES-GCM with both key lengths, ESN) provide a network and SAs for each tenant. The NIC encapsulates
# and protects; 1 % of packets are lost. Tenants ping each other and the far end, and move files both ways. Then forged
# packets are sent: with another tenant's Ethernet address, in clear text, in another network, under another tenant's
# SA; all are dropped and counted. Rules are replaced meanwhile. tshark, with the keys, sees tunnel packets inside ESP.
# Needs no root.
#   tests/linux/eswitch_guest.sh [TENANTS] [KIB] [TUNNEL] [FAMILY]
# 2 tenants by default, 8 at most; files of 128 KiB, for QEMU interprets guests; TUNNEL: vxlan, gretap or geneve; FAMILY of the underlay: 4 or 6
. "$(dirname "$0")/guest/lib.sh"
tenants=${1:-2} kib=${2:-128} tunnel=${3:-vxlan} family=${4:-4}
case $tunnel in
vxlan) port=4789 wrapping=30 number=vxlan.vni ;;
geneve) port=6081 wrapping=30 number=geneve.vni ;;
gretap) port= wrapping=22 number=gre.key ;;
*) echo "${0##*/}: no tunnel $tunnel: vxlan, gretap or geneve" >&2; exit 2 ;;
esac
case $family in
4) net=10.77.0. checksum=nocsum header=20 ;;
6) net=fd77:: checksum=csum header=40 ;; # without one, UDP over IPv6 is refused by Linux
*) echo "${0##*/}: no family $family: 4 or 6" >&2; exit 2 ;;
esac
[ $tunnel != gretap ] || checksum=nocsum # Linux takes GRE with a checksum only where it was told to
selector="proto ${port:+udp dport $port}"
[ $tunnel != gretap ] || selector="proto gre"
mtu=$((1500 - header - 34 - wrapping)) # ESP takes 34 bytes: header, IV, tag, trailer
eswitch=$(realpath -e "${ESWITCH:-target/release/eswitch}")
guests=()

head -c "${kib}K" /dev/urandom >"$work/bulk"
hash=$(sha256sum <"$work/bulk" | cut -d' ' -f1)
hypervisor=${net}1
sa() { # from, to, SPI, reqid, key: words of ip xfrm
    echo "state add src $1 dst $2 proto esp spi $3 reqid $4 mode transport replay-window 128 flag esn aead AEAD 0x$5 128"
}
sa_of_tshark() { # from, to, SPI, key
    printf '"IPv%s","%s","%s","0x%08x","AES-GCM with 16 octet ICV [RFC4106]","0x%s","NULL",""\t,"64-bit","0x00000000"\n' "$family" "$1" "$2" "$3" "$4" >>"$work/esp_sa"
}
protect=()
for ((n = 0; n < tenants; n++)); do
    far=$net$((16 + n)) vni=$((100 + n)) reqid=$((16 + n)) bytes=$((n % 2 ? 36 : 20)) others=
    for direction in out in; do
        from=$hypervisor to=$far spi=$((0x1000 + 2 * n))
        [ $direction = out ] || { from=$far to=$hypervisor spi=$((spi + 1)); }
        key=$(head -c "$bytes" /dev/urandom | od -An -v -tx1 | tr -d ' \n')
        words=$(sa "$from" "$to" "$spi" "$reqid" "$key")
        echo "${words/AEAD/rfc4106(gcm(aes))} offload packet dir $direction" >>"$work/keys"
        echo "ip xfrm ${words/AEAD/\'rfc4106(gcm(aes))\'}" >>"$work/xfrm"
        other=in
        [ $direction = out ] || other=out
        echo "ip xfrm policy add src $from dst $to $selector dir $other priority 10 tmpl proto esp reqid $reqid mode transport" >>"$work/xfrm"
        sa_of_tshark "$from" "$to" "$spi" "$key"
    done
    # Packets with this mark are forged.
    echo "ip xfrm policy add src $far dst $hypervisor dir out priority 1 mark 7" >>"$work/xfrm"
    protect+=(--protect "${tunnel}0:$vni=$reqid")
    wrap="action tunnel_key set src_ip $hypervisor dst_ip $far id $vni $checksum action mirred egress redirect dev ${tunnel}0"
    for ((m = 0; m < tenants; m++)); do
        [ $m != $n ] || continue
        others+=" action mirred egress mirror dev pf0vf$m"
        echo "tc filter add dev pf0vf$n ingress prio 1 flower dst_mac 02:00:00:00:01:0$m action mirred egress redirect dev pf0vf$m"
    done >>"$work/rules"
    {
        echo "tc filter add dev pf0vf$n ingress prio 1 flower dst_mac 02:00:00:00:02:0$n $wrap"
        echo "tc filter add dev pf0vf$n ingress protocol arp prio 2 flower dst_mac ff:ff:ff:ff:ff:ff$others $wrap"
        echo "tc filter add dev ${tunnel}0 ingress prio 1 flower enc_key_id $vni enc_src_ip $far action tunnel_key unset action mirred egress redirect dev pf0vf$n"
    } >>"$work/rules"
done
echo "policy setdefault in accept out accept" >>"$work/keys"

# Common setup of tenants and the far end: both serve a file, and answer uploads with their hash.
cat >"$work/common" <<'SCRIPT'
serve() {
    "$@" socat TCP-LISTEN:9,fork,reuseaddr SYSTEM:'sha256sum' &
    "$@" socat TCP-LISTEN:10,fork,reuseaddr SYSTEM:'cat /guest/bulk' &
}
failed=0
not_so() { echo "NOT SO: $*"; failed=1; }
SCRIPT
cat >"$work/tenant" <<'SCRIPT'
set -euo pipefail
. ./common
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
ip addr add "10.1.0.$((1 + N))/24" dev eth0
ip link set eth0 up
[ "$(cat /sys/class/net/eth0/mtu)" = "$MTU" ] || not_so "host_mtu is what the tunnel and ESP leave, $MTU: $(cat /sys/class/net/eth0/mtu)"
serve
socat -u UDP-RECV:5555 CREATE:heard &
try() { # whom
    for attempt in $(seq 60); do ping -c 1 -W 1 "$1" >/dev/null && break; done
    ping -c 3 -i 0.2 -W 2 -s $((MTU - 28)) "$1" >ping || true
    grep -q '[1-3] \(packets \)\?received' ping || { cat ping; not_so "$1 answers to the longest packet"; }
    for attempt in $(seq 60); do socat -u OPEN:/dev/null "TCP:$1:9" 2>/dev/null && break; sleep 0.5; done
    [ "$(timeout 60 socat -t 60 - "TCP:$1:9" <bulk)" = "$HASH  -" ] || not_so "what went to $1 is not what arrived"
    [ "$(timeout 60 socat -u "TCP:$1:10" - | sha256sum)" = "$HASH  -" ] || not_so "what came from $1 is not what was sent"
}
try "10.1.0.$((101 + N))"
try "10.1.0.$((1 + (N + 1) % TENANTS))"
# To the far end, with the Ethernet address of the next tenant.
python3 -c 'import socket, sys
forged = (int(sys.argv[1]) + 1) % int(sys.argv[2])
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
for number in range(10):
    s.send(bytes([2, 0, 0, 0, 2, int(sys.argv[1]), 2, 0, 0, 0, 1, forged]) + b"\x88\xb5" + bytes(46))
' "$N" "$TENANTS"
echo "DONE"
# The far end reports when everyone is done, and no more packets are forged.
socat -u "TCP:10.1.0.$((101 + N)):12,retry=100,interval=0.5" - | grep -q end || not_so "there is an end"
sleep 1
sort heard 2>/dev/null | uniq -c
[ "$N" != 0 ] || grep -q honest heard || not_so "what is in order arrives"
if grep -q 'plain\|other' heard; then not_so "nothing crosses"; fi
exit $failed
SCRIPT
cat >"$work/far" <<'SCRIPT'
set -euo pipefail
. ./common
modprobe -a esp4 esp6 xfrm_user vxlan geneve ip_gre ip6_gre
# The guest's default tunnel devices belong to no tenant.
echo 1 >/proc/sys/net/core/fb_tunnels_only_for_init_net
[ "$FAMILY" = 6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
for n in $(seq 0 $((TENANTS - 1))); do
    case $FAMILY in
    4) ip addr add "$NET$((16 + n))/24" dev eth0 ;;
    6) ip addr add "$NET$((16 + n))/64" dev eth0 nodad ;;
    esac
done
ip link set eth0 up
. ./xfrm
add_tunnel() { # name, number of the tenant
    local far=$NET$((16 + $2)) to=${NET}1 id=$((100 + $2)) tos=$((4 * $2)) add=(ip link add "$1" address "02:00:00:00:02:0$2" mtu "$MTU" type)
    case $TUNNEL$FAMILY in
    vxlan*) "${add[@]}" vxlan id "$id" local "$far" remote "$to" dstport 4789 ;;
    gretap4) "${add[@]}" gretap local "$far" remote "$to" key "$id" ;;
    gretap6) "${add[@]}" ip6gretap local "$far" remote "$to" key "$id" encaplimit none ;;
    # The device takes no address of this end: routes supply it, by the packet.
    geneve*)
        "${add[@]}" geneve id "$id" remote "$to" dstport 6081 tos "$tos"
        ip "-$FAMILY" route add "$to" dev eth0 src "$far" table "$id"
        [ "$tos" = 0 ] || ip "-$FAMILY" rule add tos "$tos" lookup "$id" priority 100
        [ "$tos" != 0 ] || ip "-$FAMILY" rule add from all lookup "$id" priority 200
        ;;
    esac
}
for n in $(seq 0 $((TENANTS - 1))); do
    add_tunnel "vx$n" "$n"
    ip netns add "t$n"
    ip link set "vx$n" netns "t$n"
    ip -n "t$n" link set lo up
    ip -n "t$n" addr add "10.1.0.$((101 + n))/24" dev "vx$n"
    ip -n "t$n" link set "vx$n" up
    serve ip netns exec "t$n"
    ip netns exec "t$n" socat TCP-LISTEN:12,fork,reuseaddr SYSTEM:"touch /tmp/done$n; until [ -e /tmp/end ]; do sleep 0.2; done; echo end" &
done
until [ "$(ls /tmp/done* 2>/dev/null | wc -l)" = "$TENANTS" ]; do sleep 0.2; done
# A datagram to the first tenant: in the tunnel as it should be, in clear text, and under the SA of the second tenant
# with that tenant's address.
TUNNEL=$TUNNEL FAMILY=$FAMILY NET=$NET python3 -c 'import os, socket, struct
tunnel, net = os.environ["TUNNEL"], os.environ["NET"]
family = socket.AF_INET6 if os.environ["FAMILY"] == "6" else socket.AF_INET
def wrapped(vni, word):
    udp = struct.pack("!HHHH", 5555, 5555, 8 + len(word), 0) + word
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([10, 1, 0, 101]), bytes([10, 1, 0, 1]))
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xffff) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", 0xffff - total) + ip[12:]
    header = {
        "vxlan": struct.pack("!BxxxI", 8, vni << 8),
        "geneve": struct.pack("!BBHI", 0, 0, 0x6558, vni << 8),
        "gretap": struct.pack("!HHI", 0x2000, 0x6558, vni),
    }[tunnel]
    return header + bytes([2, 0, 0, 0, 1, 0, 2, 0, 0, 0, 2, 0]) + b"\x08\x00" + ip + udp
def send(host, mark, vni, word):
    if tunnel == "gretap": s, port = socket.socket(family, socket.SOCK_RAW, 47), 0
    else: s, port = socket.socket(family, socket.SOCK_DGRAM), {"vxlan": 4789, "geneve": 6081}[tunnel]
    s.setsockopt(socket.SOL_SOCKET, 36, mark)  # SO_MARK
    s.bind((net + str(host), 0))
    for number in range(20): s.sendto(wrapped(vni, word), (net + "1", port))
send(16, 7, 100, b"plain\n")
send(17, 0, 100, b"other\n")
send(17, 0, 99, b"other\n")
send(16, 0, 100, b"honest\n")
'
sleep 1
touch /tmp/end
sleep 3
grep -v ' *0$' /proc/net/xfrm_stat || true
exit $failed
SCRIPT

options=()
for ((n = 0; n < tenants; n++)); do options+=(--vf "$n=vm$n"); done
cd "$work"
"$eswitch" --rules rules "${options[@]}" --uplink dgram:near,far.sock --keys keys "${protect[@]}" --loss 0.01 --pcap wire.pcapng >log 2>&1 & pid=$!
until grep -q '^Ctrl-C' log 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { cat log; echo "the switch did not start"; exit 1; }
    sleep 0.05
done
began=$SECONDS
boot() { # name, script, QEMU's arguments
    local name=$1 script=$2
    shift 2
    "$here/guest/boot.sh" -t 400 -m 448 -e "N=${name#vm}" -e "TENANTS=$tenants" -e "HASH=$hash" -e "MTU=$mtu" \
        -e "TUNNEL=$tunnel" -e "FAMILY=$family" -e "NET=$net" -f common -f bulk -f xfrm "$script" -smp 1 "$@" >"$name.log" 2>&1 &
    guests+=($!)
}
boot far far -netdev dgram,id=n0,local.type=unix,local.path=far.sock,remote.type=unix,remote.path=near -device virtio-net-pci,netdev=n0
for ((n = 0; n < tenants; n++)); do
    # Exactly the line that the program prints.
    boot "vm$n" tenant $(sed -n "s/^pf0vf$n: qemu-system-x86_64 //p" log)
done
# Rules are replaced by equal ones during transfers, so that everything goes on.
for ((time = 0; time < 4000; time++)); do
    sleep 0.1
    [ $((time % 20)) != 0 ] || kill -HUP "$pid"
    running=0
    for one in "${guests[@]}"; do ! kill -0 "$one" 2>/dev/null || running=$((running + 1)); done
    [ $running -gt 0 ] || break
done
failed=
for name in far $(seq -f 'vm%g' 0 $((tenants - 1))); do
    wait "${guests[0]}" || failed="$failed $name"
    guests=("${guests[@]:1}")
    sed "s/^/$name: /" "$name.log"
done
kill "$pid"
wait "$pid" || failed="$failed eswitch"
pid=
grep -E '^(eswitch_|wire_lost|pf0vf|[0-9]+ frames)' log || true
[ -z "$failed" ] || { cat log; echo "failed:$failed"; exit 1; }

counted() { awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }' log; }
claim() { # name, least
    [ "$(counted "$1")" -ge "$2" ] || { echo "NOT SO: $1 is $2 at least, not $(counted "$1")"; exit 1; }
}
claim eswitch_drop_spoofed $((10 * tenants))
claim eswitch_drop_decap_unprotected 10
claim eswitch_drop_decap_other_sa 20
claim eswitch_ipsec_tx_pkts 100
claim eswitch_ipsec_rx_pkts 100
claim wire_lost 1
reloaded=$(grep -c "^rules are as rules says" log) || true
[ "$reloaded" -ge 3 ] || { echo "NOT SO: rules were replaced under traffic ($reloaded times)"; exit 1; }

look_at_the_wire() {
    command -v tshark >/dev/null || { echo "tshark is missing: nobody else looks at the wire"; return; }
    local sas=() short long line seen plain
    while IFS=$'\t' read -r short long; do
        line=$short$long
        # Older versions of tshark do not know this choice of sequence numbers, but show the packet's content anyway.
        [[ $(tshark -r wire.pcapng -c 1 -o "uat:esp_sa:$line" 2>&1) != *WARNING* ]] || line=$short
        sas+=(-o "uat:esp_sa:$line")
    done <esp_sa
    count() { tshark -r wire.pcapng -o esp.enable_encryption_decode:TRUE "${sas[@]}" -Y "$1" 2>>tshark.log | wc -l; }
    # Selected by the NIC's own address and by the tenants' addresses in the outer frame, because the other end's Linux
    # may quote a decrypted packet.
    local clear="!esp && ((frame[6:6] == 02:00:00:00:00:01 && !arp && !icmpv6) || frame[6:5] == 02:00:00:00:01)"
    plain=$(count "$clear")
    seen=$(count "esp && frame[6:6] == 02:00:00:00:00:01")
    [ "$seen" -gt 50 ] || { echo "NOT SO: what the NIC sends is seen by its address"; exit 1; }
    for ((n = 0; n < tenants; n++)); do
        seen=$(count "esp && $number == $((100 + n)) && tcp")
        echo "tshark, with the SAs: $seen packets of TCP in network $((100 + n)) in ESP"
        [ "$seen" -gt 50 ] || { head tshark.log; echo "NOT SO: tshark sees what is inside"; exit 1; }
    done
    [ "$plain" = 0 ] || { tshark -r wire.pcapng -Y "$clear"; echo "NOT SO: nothing of a protected network leaves in the clear"; exit 1; }
}
look_at_the_wire
echo "done: $tenants tenants, $tunnel over IPv$family, $kib KiB each way between them and to the far end, $((SECONDS - began)) s"
