#!/usr/bin/env bash
# Tests a stock Linux that steers our switch: it has the representors of the NIC's ports as network cards, forwards
# between them, and runs the agent `linux-mirror tc`. Linux forwards the frames that no rule takes. After `tc filter add
# ... flower` in that Linux, frames go from port to port within the NIC; the kernel's counters stay fresh, because a
# sampled frame still takes the old path; the rules' own counters are reported to Linux. After the filters are deleted,
# Linux forwards again. One guest has everything: the steering Linux, and three machines at virtual functions, each in a
# network namespace with its own network card. Needs no root.
#   tests/linux/steer_guest.sh
. "$(dirname "$0")/guest/lib.sh"
eswitch=$(realpath -e "${ESWITCH:-target/release/eswitch}")
agent=$(realpath -e "${LINUX_MIRROR:-target/x86_64-unknown-linux-gnu/release/linux-mirror}")
head -c 256K /dev/urandom >"$work/bulk"

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
modprobe -a sch_ingress cls_flower act_mirred act_gact act_vlan virtio_console
cd /guest
chmod +x linux-mirror
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
until port=/dev/$(basename "$(dirname "$(grep -lx filters /sys/class/virtio-ports/*/name)")") && [ -c "$port" ]; do sleep 0.1; done
failed=0
not_so() { echo "NOT SO: $*"; failed=1; }
# Selected by address: representors 02:00:00:00:0a:..., machines with their usual ones.
for card in /sys/class/net/eth*; do
    name=${card##*/}
    case $(cat "$card/address") in
    02:00:00:00:0a:00) ip link set "$name" name pf0vf2 ;;
    02:00:00:00:0a:01) ip link set "$name" name pf0vf0 ;;
    02:00:00:00:0a:02) ip link set "$name" name pf0vf1 ;;
    02:00:00:00:01:00) where=vm0 address=10.1.0.1 ;;&
    02:00:00:00:01:01) where=vm1 address=10.1.0.2 ;;&
    02:00:00:00:01:02) where=vm2 address=10.1.0.3 ;;&
    02:00:00:00:01:0*)
        ip netns add $where
        ip link set "$name" netns $where name eth0
        ip -n $where link set lo up
        ip -n $where addr add $address/24 dev eth0
        ip -n $where link set eth0 up ;;
    esac
done
# The slow path: filters that only the kernel has.
all="pf0vf0 pf0vf1 pf0vf2"
for card in $all; do
    ip link set $card promisc on up
    tc qdisc add dev $card clsact
    set -- $(for other in $all; do [ $other = $card ] || echo $other; done)
    tc filter add dev $card ingress prio 100 flower skip_hw dst_mac ff:ff:ff:ff:ff:ff action mirred egress mirror dev $1 pipe action mirred egress redirect dev $2
    for way in 02:00:00:00:01:00/pf0vf0 02:00:00:00:01:01/pf0vf1 02:00:00:00:01:02/pf0vf2; do
        [ "${way#*/}" = $card ] || tc filter add dev $card ingress prio 101 flower skip_hw dst_mac "${way%/*}" action mirred egress redirect dev "${way#*/}"
    done
done
./linux-mirror tc --counters counters "$port" >agent.log 2>&1 &
answers() { # from, to, how many
    for attempt in $(seq 30); do ! ip netns exec "$1" ping -c 1 -W 1 "$2" >/dev/null || break; done
    ip netns exec "$1" ping -c "$3" -i 0.2 -W 2 "$2" >ping || true
    grep -q "^$3 packets transmitted, $3 \(packets \)\?received" ping || { cat ping; not_so "$1 hears of $2"; }
}
received() { cat /sys/class/net/$1/statistics/rx_packets; } # by a representor: what the kernel had to see
used() { awk -v device="$1" -v handle="$2" '$2 == device && $6 == 2 && $8 == handle { print $10; found = 1 } END { if (!found) print 0 }' counters 2>/dev/null || echo 0; }

echo "-- without filters of the switch, the kernel forwards"
answers vm0 10.1.0.2 5
answers vm0 10.1.0.3 5
before=$(received pf0vf0)
answers vm0 10.1.0.2 20
[ $(($(received pf0vf0) - before)) -ge 20 ] || not_so "the kernel saw every frame"

echo "-- with filters, the NIC does"
leads() { # from, to which address, by which device
    tc filter add dev "$1" ingress protocol "$4" prio "$5" handle "$6" flower dst_mac "$2" action mirred egress redirect dev "$3"
}
leads pf0vf0 02:00:00:00:01:01 pf0vf1 ip 2 1
leads pf0vf1 02:00:00:00:01:00 pf0vf0 ip 2 1
leads pf0vf0 02:00:00:00:01:02 pf0vf2 ip 2 2
leads pf0vf2 02:00:00:00:01:00 pf0vf0 ip 2 1
sleep 1
before=$(received pf0vf0)
answers vm0 10.1.0.2 100
seen=$(($(received pf0vf0) - before))
echo "the kernel saw $seen of 100 frames"
# One frame every two seconds, and neighbour discovery.
[ "$seen" -le 25 ] || not_so "the NIC forwards by itself"
[ "$seen" -ge 5 ] || not_so "the kernel sees signs of life"
tc -s filter show dev pf0vf0 ingress prio 2 >shown
age=$(sed -n 's/.* used \([0-9]*\) sec.*/\1/p' shown | head -n 1)
echo "the kernel's filter was used $age s ago; in the NIC it took $(used pf0vf0 1) frames"
[ "$age" -le 4 ] || { cat shown; not_so "a filter in use is young"; }
for attempt in $(seq 20); do [ "$(used pf0vf0 1)" -lt 100 ] || break; sleep 0.2; done
[ "$(used pf0vf0 1)" -ge 100 ] || { cat counters; not_so "what rules did comes back"; }

echo "-- a file to the third machine"
ip netns exec vm2 socat -u TCP-LISTEN:9,reuseaddr CREATE:got & listening=$!
for attempt in $(seq 30); do ip netns exec vm0 socat -u OPEN:bulk TCP:10.1.0.3:9 2>/dev/null && break; sleep 0.2; done
wait $listening
cmp bulk got || not_so "the file came whole"

echo "-- a filter that the switch has not is the kernel's"
tc filter add dev pf0vf0 ingress protocol ip prio 1 handle 9 flower dst_mac 02:00:00:00:01:01 ip_proto icmp ip_ttl 64 action drop
sleep 1
if ip netns exec vm0 ping -c 3 -i 0.2 -W 1 10.1.0.2 >/dev/null; then not_so "the kernel drops them"; fi
tc filter del dev pf0vf0 ingress protocol ip prio 1 handle 9 flower
answers vm0 10.1.0.2 5

echo "-- filters go"
for card in $all; do tc filter del dev $card ingress prio 2; done
sleep 1
before=$(received pf0vf0)
answers vm0 10.1.0.2 20
[ $(($(received pf0vf0) - before)) -ge 20 ] || not_so "the kernel forwards again"
cat agent.log
exit $failed
SCRIPT

cd "$work"
"$eswitch" --filters filters --representor pf0vf2=rep2 --representor pf0vf0=rep0 --representor pf0vf1=rep1 \
    --vf 0=vm0 --vf 1=vm1 --vf 2=vm2 --uplink dgram:near,far.sock >log 2>&1 & pid=$!
until grep -q '^Ctrl-C' log 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { cat log; echo "the switch did not start"; exit 1; }
    sleep 0.05
done
cards=()
card() { # number, our socket, the guest's, address
    cards+=(-netdev "dgram,id=n$1,local.type=unix,local.path=$3,remote.type=unix,remote.path=$2" -device "virtio-net-pci,netdev=n$1,mac=$4")
}
card 0 rep2 rep2.guest 02:00:00:00:0a:00
card 1 rep0 rep0.guest 02:00:00:00:0a:01
card 2 rep1 rep1.guest 02:00:00:00:0a:02
card 3 vm0 vm0.guest 02:00:00:00:01:00
card 4 vm1 vm1.guest 02:00:00:00:01:01
card 5 vm2 vm2.guest 02:00:00:00:01:02
"$here/guest/boot.sh" -t 400 -m 512 -f "$agent" -f bulk script "${cards[@]}" \
    -chardev socket,id=filters,path=filters -device virtio-serial-pci -device virtserialport,chardev=filters,name=filters || status=$?
kill "$pid"
wait "$pid" || true
pid=
grep -E '^(filters|eswitch_|representor_|tc_mirror_|[0-9]+ frames)' log || true
[ "$status" = 0 ] || { cat log; exit "$status"; }
grep -q '^filters: filter dev pf0vf0 chain 0 prio 1 handle 9 is left to the kernel' log || { echo "NOT SO: it is told what is left to the kernel"; exit 1; }
echo done
