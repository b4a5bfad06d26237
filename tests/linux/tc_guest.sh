#!/usr/bin/env bash
# Tests the golden rule of TC offload: with the same rules and frames, a stock Linux guest's own tc and the switch give
# the same frames, byte by byte. Random cases from a seed; a case is a set of rules with 24 frames. Needs no root.
#   tests/linux/tc_guest.sh [SETS] [SEED]        100 sets by default, in batches of 1000 a boot
. "$(dirname "$0")/guest/lib.sh"
sets=${1:-100} seed=${2:-20261122} a_boot=1000
cases=${TC_CASES:-target/release/examples/tc_cases}
[ -x "$cases" ] || { echo "$cases is missing: cargo build --release -p nic-switch --example tc_cases"; exit 1; }

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
modprobe -a sch_ingress cls_flower act_mirred act_gact act_vlan act_pedit act_csum act_tunnel_key veth vxlan ip_gre
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
echo 0 >/proc/sys/net/ipv4/conf/default/rp_filter
pair() { # the device that rules name, its other end, its address
    ip link add "$1" address "$3" type veth peer name "$2"
    for end in "$1" "$2"; do
        ethtool -K "$end" tx off rx off tso off gso off gro off >/dev/null 2>&1 || true
        echo 1 >"/proc/sys/net/ipv6/conf/$end/disable_ipv6"
        ip link set "$end" arp off promisc on up
    done
}
pair p0 w0 02:00:00:00:01:01
for number in 0 1 2; do
    pair "pf0vf$number" "f$number" "02:00:00:00:08:0$number"
    pair "m$number" "n$number" "02:00:00:00:07:0$number"
done
echo 0 >/proc/sys/net/ipv6/conf/p0/disable_ipv6
echo 0 >/proc/sys/net/ipv6/conf/p0/accept_dad
ip addr add 192.0.2.1/24 dev p0
ip addr add fd02::1/64 dev p0 nodad
ip neigh add 192.0.2.2 lladdr 02:00:00:00:01:02 dev p0 nud permanent
ip neigh add fd02::2 lladdr 02:00:00:00:01:02 dev p0 nud permanent
ip link add vxlan0 type vxlan external dstport 4789 srcport 4789 4790
ip link add gretap1 type gretap external
for tunnel in vxlan0 gretap1; do
    echo 1 >"/proc/sys/net/ipv6/conf/$tunnel/disable_ipv6"
    ip link set "$tunnel" arp off up
done
for device in p0 pf0vf0 pf0vf1 pf0vf2 vxlan0 gretap1; do tc qdisc add dev "$device" clsact; done
python3 tc_frames.py cases
SCRIPT

for ((first = 0; first < sets; first += a_boot)); do
    count=$((sets - first < a_boot ? sets - first : a_boot))
    "$cases" "$seed" "$first" "$count" >"$work/cases"
    "$here/guest/boot.sh" -t 900 -m 512 -f "$work/cases" -f "$here/tc_frames.py" "$work/script"
done
echo "done: $sets sets of rules from seed $seed"
