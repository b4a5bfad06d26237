#!/usr/bin/env bash
# Tests that the switch gets every rule that `tc` gives to a Linux machine: random sets of rules go into the kernel of a
# stock guest by its own tc, the agent `linux-mirror tc` reads them there, and the rules received outside are compared
# with the given ones. The agent is killed and restarted, and sleeps while the kernel changes more than fits its socket;
# counters are reported back. Needs no root.
#   tests/linux/tc_mirror_guest.sh [SETS] [SEED]        100 sets by default
. "$(dirname "$0")/guest/lib.sh"
sets=${1:-100} seed=${2:-20261122}
cases=${TC_CASES:-target/release/examples/tc_cases}
[ -x "$cases" ] || { echo "$cases is missing: cargo build --release -p nic-switch --example tc_cases"; exit 1; }
replay=$(realpath -m "${TC_REPLAY:-target/release/examples/replay}")
[ -x "$replay" ] || { echo "$replay is missing: cargo build --release -p linux-mirror --example replay"; exit 1; }
agent=$(realpath -e "${LINUX_MIRROR:-target/x86_64-unknown-linux-gnu/release/linux-mirror}")
"$cases" "$seed" 0 "$sets" | grep '^[SR]' >"$work/cases"

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
modprobe -a sch_ingress cls_flower act_mirred act_gact act_vlan act_pedit act_csum act_tunnel_key veth vxlan ip_gre virtio_console
cd /guest
chmod +x linux-mirror
until port=/dev/$(basename "$(dirname "$(grep -lx filters /sys/class/virtio-ports/*/name)")") && [ -c "$port" ]; do sleep 0.1; done
for pair in p0:w0 pf0vf0:f0 pf0vf1:f1 pf0vf2:f2 m0:n0 m1:n1 m2:n2 card0:c0; do
    ip link add "${pair%:*}" type veth peer name "${pair#*:}"
    ip link set "${pair%:*}" up
done
ip link add vxlan0 type vxlan external dstport 4789
ip link add gretap1 type gretap external
ip link set vxlan0 up
ip link set gretap1 up
ruled="p0 pf0vf0 pf0vf1 pf0vf2 vxlan0 gretap1 card0"
for device in $ruled; do tc qdisc add dev "$device" clsact; done
mirror() { ./linux-mirror tc --counters counters "$port" >>agent.log 2>&1 & agent=$!; } # no function in between: the agent has this number
mirror
number=0 asleep=
give() { # the rules of the next set, which are in `batch`
    [ -e batch ] || return 0
    for device in $ruled; do
        if [ $((number % 2)) = 0 ]; then
            for chain in 0 1 2; do tc filter del dev "$device" ingress chain $chain 2>/dev/null || true; done
        else
            tc qdisc del dev "$device" clsact
            tc qdisc add dev "$device" clsact
        fi
    done
    [ ! -s batch ] || tc -batch batch
    tc filter add dev card0 ingress prio $((number + 1)) flower action drop
    number=$((number + 1))
    rm batch
    [ -n "$asleep" ] || came
    case $((number % 20)) in
    5) # The agent dies, and comes back to another kernel.
        kill -9 $agent
        wait $agent 2>/dev/null || true
        mirror ;;
    10) kill -STOP $agent; asleep=1 ;;
    15) kill -CONT $agent; asleep= ;;
    esac
}
came() { # waits until the last set has come, whose mark has let a frame pass
    for attempt in $(seq 600); do
        if grep -q "^dev card0 chain 0 prio $number handle 1 packets 1 bytes 60 idle 7$" counters 2>/dev/null; then return 0; fi
        sleep 0.1
    done
    echo "NOT SO: set $number came, and its counters came back"
    exit 1
}
while read -r kind rest; do
    case $kind in
    S) give; : >batch ;;
    R) echo "$rest" >>batch ;;
    esac
done <cases
give
kill -CONT $agent
came
cat agent.log
SCRIPT

(cd "$work" && exec "$replay" filters cases >log 2>&1) & pid=$!
until grep -q '^listening' "$work/log" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "nobody listens"; exit 1; }
    sleep 0.05
done
(cd "$work" && "$here/guest/boot.sh" -t 600 -m 512 -f "$agent" -f cases script \
    -chardev socket,id=filters,path=filters -device virtio-serial-pci -device virtserialport,chardev=filters,name=filters) || status=$?
wait "$pid" || status=1
pid=
cat "$work/log"
[ "$status" = 0 ] || exit "$status"
echo "done: $sets sets of rules from seed $seed"
