#!/usr/bin/env bash
# Tests unmodified Open vSwitch of Debian 13 that steers our switch: with hw-offload=true it turns its flows into flower
# filters, and the agent `linux-mirror tc` sends them to the NIC. One stock guest has everything: the steering Linux
# with Open vSwitch, which has the representors of two functions and of the uplink as network cards; the tenants at
# these functions, each in a network namespace; and at the other end of the wire a stock Linux with its own Open
# vSwitch, in its own namespace and root, with a third tenant. Tenants ping each other and move files, over one bridge,
# and over VXLAN and GRE. Flows in use stay, idle ones expire together with the switch's rules. With `encrypted`,
# `ovs-monitor-ipsec` and strongSwan at both ends key the tunnels, and `linux-mirror sa` sends the SAs to the NIC:
# tshark sees only ESP. Needs root, because debootstrap makes the root.
#   tests/linux/ovs_guest.sh [clear|encrypted|short]...     the first two by default; short: encrypted over GRE alone,
#     and keys do not change
# Environment: KIB, the size of files (256, for QEMU interprets the guest).
. "$(dirname "$0")/guest/lib.sh"
eswitch=$(realpath -e "${ESWITCH:-target/release/eswitch}")
agent=$(realpath -e "${LINUX_MIRROR:-target/x86_64-unknown-linux-gnu/release/linux-mirror}")
roots=$(realpath -m "$here/../../target/roots")
timeout 400 "$here/guest/root.sh" ovs openvswitch-switch openvswitch-ipsec strongswan-starter strongswan-charon strongswan-swanctl libstrongswan-standard-plugins \
    libcharon-extra-plugins iproute2 iputils-ping procps || status=$?
[ "$status" != 124 ] || { echo "SKIPPED: ${0##*/}: Debian's archive is too slow"; exit 77; }
[ "$status" = 0 ] || exit "$status"
# Besides the guest of other scripts, one with the kernel modules of Open vSwitch.
export GUEST=${GUEST:-$here/../../target/guest}-ovs
MODULES="openvswitch vport_vxlan vport_gre ip_gre" "$here/guest/build.sh" "$GUEST" || status=$?
[ "$status" = 0 ] || exit "$status"
head -c "${KIB:-256}K" /dev/urandom >"$work/bulk"

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
modprobe -a sch_ingress cls_flower act_mirred act_gact act_vlan act_tunnel_key act_skbedit virtio_console openvswitch vport_vxlan vport_gre \
    veth ext4 virtio_blk esp4 xfrm_user
cd /guest
chmod +x linux-mirror
not_so() {
    echo "NOT SO: $*"
    show
    tail -n 20 ./*.log
    at here grep -v '|INFO|\|Unreasonably\|timeval' /var/log/openvswitch/ovs-vswitchd.log || true
    exit 1
}
port_of() { # name: the virtio-serial port
    until port=/dev/$(basename "$(dirname "$(grep -lx "$1" /sys/class/virtio-ports/*/name)")") && [ -c "$port" ]; do sleep 0.1; done
    echo "$port"
}
for side in here far; do
    disk=/dev/$([ $side = here ] && echo vda || echo vdb)
    until [ -b $disk ]; do sleep 0.1; done
    mkdir -p /mnt/$side
    mount -o noatime $disk /mnt/$side
    for folder in proc dev sys; do mount --rbind /$folder /mnt/$side/$folder; done
    mount -t tmpfs none /mnt/$side/run
done
for space in vm0 vm1 far t0; do
    ip netns add $space
    ip -n $space link set lo up
    ip netns exec $space sh -c 'for one in all default; do echo 1 >/proc/sys/net/ipv6/conf/$one/disable_ipv6; done'
done
for one in all default; do echo 1 >/proc/sys/net/ipv6/conf/$one/disable_ipv6; done
for card in /sys/class/net/eth*; do
    name=${card##*/}
    case $(cat "$card/address") in
    02:00:00:00:00:01) ip link set "$name" name p0 up; ip addr add 10.77.0.1/24 dev p0 ;;
    02:00:00:00:0a:01) ip link set "$name" name pf0vf0 up ;;
    02:00:00:00:0a:02) ip link set "$name" name pf0vf1 up ;;
    02:00:00:00:01:00) where=vm0 address=10.1.0.1 ;;&
    02:00:00:00:01:01) where=vm1 address=10.1.0.2 ;;&
    02:00:00:00:00:02) where=far address=10.77.0.2 ;;&
    *)
        ip link set "$name" netns $where name eth0
        ip -n $where addr add $address/24 dev eth0
        ip -n $where link set eth0 up ;;
    esac
done
# Room for VXLAN and ESP.
for space in vm0 vm1; do ip -n $space link set eth0 mtu 1400; done
ip -n far link add v0 type veth peer name eth0 netns t0
ip -n far link set v0 up
ip -n t0 addr add 10.1.0.101/24 dev eth0
ip -n t0 link set eth0 mtu 1400 up

at() { # side, command in its root
    local side=$1; shift
    if [ $side = far ]; then ip netns exec far chroot /mnt/far "$@"; else chroot /mnt/here "$@"; fi
}
vsctl() { at "$1" ovs-vsctl "${@:2}"; }
start_ovs() { # side, options of the database
    at "$1" /usr/share/openvswitch/scripts/ovs-ctl --system-id=random --no-ovs-vswitchd start >"$1.out" 2>&1
    vsctl "$1" --no-wait set Open_vSwitch . "${@:2}"
    at "$1" /usr/share/openvswitch/scripts/ovs-ctl --system-id=random --no-ovsdb-server start >>"$1.out" 2>&1
}
start_ovs here other_config:hw-offload=true other_config:tc-policy=none other_config:max-idle=5000
start_ovs far other_config:max-idle=5000
vsctl here --version | head -1
port=$(port_of filters)
./linux-mirror tc --counters counters "$port" >agent.log 2>&1 &
vsctl here add-br br0 -- add-port br0 pf0vf0 -- add-port br0 pf0vf1
vsctl far add-br br0 -- add-port br0 v0

answers() { # from, to, how many
    for attempt in $(seq 30); do ! ip netns exec "$1" ping -c 1 -W 1 "$2" >/dev/null || break; done
    ip netns exec "$1" ping -c "$3" -i 0.2 -W 2 "$2" >ping || true
    grep -q "^$3 packets transmitted, $3 \(packets \)\?received" ping || { tail -3 ping; not_so "$1 hears of $2"; }
}
file() { # from, to, its address
    ip netns exec "$2" socat -u TCP-LISTEN:9,reuseaddr CREATE:got & listening=$!
    for attempt in $(seq 30); do ip netns exec "$1" socat -u OPEN:bulk "TCP:$3:9" 2>/dev/null && break; sleep 0.2; done
    wait $listening
    cmp bulk got || not_so "a file came whole from $1 to $2"
}
received() { cat /sys/class/net/$1/statistics/rx_packets; } # by a representor: what the kernel had to see
flows() { at here ovs-appctl dpctl/dump-flows type=tc; } # what Open vSwitch has in tc
used() { # device: the most that one of its rules took in the switch
    awk -v device="$1" '$2 == device && $10 > most { most = $10 } END { print most + 0 }' counters 2>/dev/null || echo 0
}
show() {
    flows
    for card in pf0vf0 pf0vf1 vxlan_sys_4789 gre_sys; do tc -s filter show dev $card ingress 2>/dev/null | sed "s/^/$card: /" || true; done
    cat counters || true
}
carried() { # from, to, what devices filters are at: pings, all of which but a few are the NIC's
    answers "$1" "$2" 5
    local seen=$(received pf0vf0) before=$(used "$3") card
    answers "$1" "$2" 30
    seen=$(($(received pf0vf0) - seen))
    for attempt in $(seq 20); do [ $(($(used "$3") - before)) -lt 25 ] || break; sleep 0.2; done
    echo "   of 30 pings the kernel saw $seen; in the NIC a rule of $3 took $(($(used "$3") - before))"
    [ "$seen" -le 15 ] && [ $(($(used "$3") - before)) -ge 25 ] || not_so "the NIC forwards by itself"
    # Longer than idle flows live: with the same filters.
    flows | sed 's/.*in_port/in_port/' >shown
    grep -c 'eth_type(0x0800)' shown >/dev/null || not_so "Open vSwitch has flows in tc"
}
idle() { # after a while without traffic, nothing is left
    for attempt in $(seq 100); do [ -n "$(flows | grep 'eth_type(0x0800)')" ] || break; sleep 0.2; done
    [ -z "$(flows | grep 'eth_type(0x0800)')" ] || not_so "idle flows go"
    for card in pf0vf0 pf0vf1 vxlan_sys_4789 gre_sys; do
        ! tc filter show dev $card ingress 2>/dev/null | grep -q 'eth_type ipv4' || not_so "and their filters"
    done
}
settled() { # until ovs-monitor-ipsec has told both daemons: what they negotiate before, it ends
    local side
    for side in here far; do
        for attempt in $(seq 150); do ! at $side ipsec status | grep -q ROUTED || break; sleep 0.5; done
    done
    sleep 8
}
sas() { ip xfrm state | grep 'proto esp' | grep -vc 'spi 0x00000000' || true; }
keyed() { # how many SAs: until the tunnel has them at both ends
    # Until the first SAs exist, the kernel's own packets must match the policies, which makes the daemon negotiate.
    echo 0 >/proc/sys/net/ipv4/conf/p0/disable_xfrm
    for attempt in $(seq 100); do
        [ "$(sas)" -lt 2 ] || echo 1 >/proc/sys/net/ipv4/conf/p0/disable_xfrm
        if ip netns exec vm0 ping -c 1 -W 1 10.1.0.101 >/dev/null && [ "$(sas)" -ge "$1" ]; then return 0; fi
    done
    return 1
}
tunnel() { # kind, what more Open vSwitch is told
    vsctl here add-port br0 tun0 -- set interface tun0 type=$1 options:remote_ip=10.77.0.2 options:local_ip=10.77.0.1 options:key=100 "${@:2}"
    vsctl far add-port br0 tun0 -- set interface tun0 type=$1 options:remote_ip=10.77.0.1 options:local_ip=10.77.0.2 options:key=100 "${@:2}"
}
no_tunnel() { # what its device is called in the switch
    for side in here far; do vsctl $side del-port br0 tun0; done
    for attempt in $(seq 50); do grep -q "^dev $1 " counters || return 0; sleep 0.2; done
    not_so "with a device, its filters go, and their counters"
}
device_of() { if [ "$1" = vxlan ]; then echo vxlan_sys_4789; else echo gre_sys; fi; }
rule_of() { if [ "$1" = vxlan ]; then echo vxlan0; else echo gretap0; fi; }
crosses() { # a tunnel's kind: pings and files of tenants on either side, and then it goes
    carried vm0 10.1.0.101 pf0vf0
    carried t0 10.1.0.1 "$(rule_of "$1")"
    file vm0 t0 10.1.0.101
    file t0 vm1 10.1.0.2
    meanwhile
    no_tunnel "$(rule_of "$1")"
}

meanwhile() { :; }
for kind in clear encrypted; do
    [ "$MODE" = $kind ] || continue
    . ./$kind
done
cat agent.log
SCRIPT
cat >"$work/clear" <<'SCRIPT'
echo "-- two tenants on one bridge"
carried vm0 10.1.0.2 pf0vf0
file vm0 vm1 10.1.0.2
idle
for kind in vxlan gre; do
    echo "-- over $kind, to the tenant of another Open vSwitch"
    tunnel $kind
    crosses $kind
done
SCRIPT
cat >"$work/encrypted" <<'SCRIPT'
port=$(port_of sas)
./linux-mirror sa "$port" >sas.log 2>&1 &
for side in here far; do
    at $side /usr/share/openvswitch/scripts/ovs-monitor-ipsec --pidfile=/run/openvswitch/ovs-monitor-ipsec.pid --ike-daemon=strongswan \
        --log-file=/var/log/openvswitch/ovs-monitor-ipsec.log --detach --monitor unix:/run/openvswitch/db.sock
done
# Packets from the uplink's representor were decrypted by the NIC; packets to it are encrypted there later.
echo 1 >/proc/sys/net/ipv4/conf/p0/disable_policy
spis() { ip xfrm state | sed -n 's/.*proto esp spi \(0x[0-9a-f]*\).*/\1/p' | grep -v 0x00000000 | sort -u >>spis; }
meanwhile() { # SAs get successors, as either side wants, while tenants ping
    [ "$REKEY" = yes ] || return 0
    local side name before
    : >spis
    spis
    before=$(sort -u spis | wc -l)
    ip netns exec vm0 chroot /mnt/here /usr/bin/ping -c 120 -i 0.2 -W 3 10.1.0.101 >pings & pinging=$!
    for side in here far here far; do
        sleep 4
        for name in $(at $side ipsec status | sed -n 's/^ *\(tun0[^{]*\){.*INSTALLED.*/\1/p' | sort -u); do
            at $side swanctl --rekey --child "$name" >rekeyed 2>&1 || { cat rekeyed; not_so "$side changes keys of $name"; }
        done
        sleep 1
        spis
    done
    wait $pinging || true
    echo "   $(($(sort -u spis | wc -l) - before)) new SAs: $(grep transmitted pings)"
    [ $(($(sort -u spis | wc -l) - before)) -ge 6 ] || not_so "keys change"
    grep -q '^120 packets transmitted, 120 received' pings || not_so "no ping is lost when keys change"
}
for kind in $KINDS; do
    echo "-- over $kind under ESP"
    tunnel $kind options:psk=swordfish
    settled
    keyed $([ $kind = vxlan ] && echo 4 || echo 2) || { ip xfrm state | grep -v aead; ip xfrm policy; at here ipsec statusall; tail -30 /mnt/here/var/log/openvswitch/ovs-monitor-ipsec.log; not_so "there are SAs"; }
    crosses $kind
done
cat sas.log
ip -s xfrm state | grep -A5 'proto esp' | grep -v aead | head -60
SCRIPT

run() { # what
    local options=() cards=() mode=$1 kinds="vxlan gre" rekey=yes
    [ "$mode" != short ] || mode=encrypted kinds=gre rekey=no
    [ "$mode" = clear ] || options=(--mirror sas)
    (cd "$work" && exec "$eswitch" --filters filters --representor p0=rep-p0 --representor pf0vf0=rep0 --representor pf0vf1=rep1 \
        --vf 0=vm0 --vf 1=vm1 --uplink dgram:near,far --pcap wire.pcapng "${options[@]}" >log 2>&1) & pid=$!
    until grep -q '^Ctrl-C' "$work/log" 2>/dev/null; do
        kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "the switch did not start"; exit 1; }
        sleep 0.05
    done
    card() { # our socket, the guest's, address
        local number=$((${#cards[@]} / 4))
        cards+=(-netdev "dgram,id=n$number,local.type=unix,local.path=$2,remote.type=unix,remote.path=$1" -device "virtio-net-pci,netdev=n$number,mac=$3")
    }
    card rep-p0 rep-p0.guest 02:00:00:00:00:01
    card rep0 rep0.guest 02:00:00:00:0a:01
    card rep1 rep1.guest 02:00:00:00:0a:02
    card vm0 vm0.guest 02:00:00:00:01:00
    card vm1 vm1.guest 02:00:00:00:01:01
    card near far 02:00:00:00:00:02
    [ "$mode" = clear ] || cards+=(-chardev "socket,id=sas,path=sas" -device "virtserialport,chardev=sas,name=sas")
    (cd "$work" && "$here/guest/boot.sh" -t 400 -m 1024 -e "MODE=$mode" -e "KINDS=$kinds" -e "REKEY=$rekey" -f "$agent" -f bulk -f "$mode" script \
        -device virtio-serial-pci "${cards[@]}" \
        -drive "file=$roots/ovs.ext4,if=none,id=here,format=raw,snapshot=on" -device virtio-blk-pci,drive=here \
        -drive "file=$roots/ovs.ext4,if=none,id=far,format=raw,snapshot=on" -device virtio-blk-pci,drive=far \
        -chardev socket,id=filters,path=filters -device virtserialport,chardev=filters,name=filters) || status=$?
    kill "$pid"
    wait "$pid" || true
    pid=
    grep -E '^(mirror|eswitch_|representor_|tc_mirror_|ipsec)' "$work/log" || true
    [ "$status" = 0 ] || { cat "$work/log"; exit "$status"; }
    [ "$mode" = clear ] || look_at_the_wire
}
counted() { awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }' "$work/log"; }
look_at_the_wire() { # it shows IKE and ESP, and no packet of a tunnel
    [ "$(counted eswitch_ipsec_tx_pkts)" -gt 100 ] && [ "$(counted eswitch_ipsec_rx_pkts)" -gt 100 ] || { echo "NOT SO: the NIC makes ESP and opens it"; exit 1; }
    command -v tshark >/dev/null || { echo "tshark is missing: nobody else looks at the wire"; return; }
    local esp plain
    esp=$(tshark -r "$work/wire.pcapng" -Y esp 2>/dev/null | wc -l)
    plain=$(tshark -r "$work/wire.pcapng" -Y 'ip && !esp && !isakmp && !igmp' 2>/dev/null | tee "$work/plain" | wc -l)
    echo "tshark: $esp packets of ESP, $plain of anything else but IKE and IGMP"
    [ "$esp" -gt 200 ] && [ "$plain" = 0 ] || { head "$work/plain"; echo "NOT SO: the wire shows ESP only"; exit 1; }
}
for mode in "${@:-clear encrypted}"; do
    for one in $mode; do run "$one"; done
done
echo done
