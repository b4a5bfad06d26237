#!/usr/bin/env bash
# Tests Linux's UDP and IPv6 against the emulated host's, over a TAP: datagrams segmented by offload at either end, over
# both IP versions; neighbour discovery; addresses from router advertisements, and routes beyond the router.
#   tests/linux/udp_tap.sh [DATAGRAMS]        how many each way, of each size; 2000 by default
. "$(dirname "$0")/lib.sh"
server=${UDP_ECHO:-target/release/udp_echo} served=
count=${1:-2000}
require
command -v python3 >/dev/null || skip "python3 is missing"
peer() { inside python3 "$(dirname "$0")/udp_peer.py" "$@"; }

both_ways() { # address, sizes
    local address=$1 size; shift
    for size in "$@"; do
        check "what was sent to $address comes back, in datagrams of $size bytes" peer echo "$address" "$count" "$size"
        check "$address sends datagrams of $size bytes in bursts" peer burst "$address" "$count" "$size"
    done
}

echo "UDP over IPv4"
start
both_ways 10.77.0.1 1200 1472
check "a datagram in fragments comes back" peer echo 10.77.0.1 10 4000
stop
check "the emulated NIC cut what its host sent" [ "$(counted tx_tso_packets)" -gt 0 ]
check "no datagram was refused" [ "$(counted UdpInErrors)$(counted UdpInCsumErrors)$(counted UdpRcvbufErrors)" = 000 ]
check "no checksum was wrong" [ "$(counted rx_csum_bad)" = 0 ]
check "nothing the kernel handed over was malformed" [ "$(counted attach_rx_malformed)" = 0 ]
# Linux 6.2 added USO to TAPs.
if [ "$(uname -r | awk -F '[.-]' '{ print ($1 * 1000 + $2 >= 6002) }')" = 1 ]; then
    check "the kernel handed over datagrams uncut" [ "$(counted attach_rx_super_segments)" -gt 0 ]
fi

if [ "$(cat /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null)" != 0 ]; then
    echo "SKIPPED: this kernel has no IPv6"
    exit 0
fi

echo "UDP over IPv6, neighbours found by NDP"
start
both_ways fd77::1 1200 1452
check "a datagram in fragments comes back" peer echo fd77::1 10 4000
check "the kernel knows where the emulated host is" grep -q lladdr <(inside ip -6 neigh show fd77::1 dev nic0)
stop
check "the emulated NIC cut what its host sent" [ "$(counted tx_tso_packets)" -gt 0 ]
check "no datagram was refused" [ "$(counted UdpInErrors)$(counted UdpInCsumErrors)$(counted UdpRcvbufErrors)" = 000 ]
check "no checksum was wrong" [ "$(counted rx_csum_bad)" = 0 ]

echo "addresses that the emulated host makes of a router's advertisement"
prefix=2001:db8:77:: made=2001:db8:77::ff:fe00:1 beyond=2001:db8:99::1
# Its answers are needed before duplicate address detection would finish; and it must not configure itself from its own
# advertisements.
inside sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.default.accept_ra=0
start --autoconf
peer router nic0 "$prefix" 20 >"$work/router" & router=$!
inside ip addr add "${prefix}2/64" dev nic0 nodad
inside ip addr add "$beyond/128" dev lo nodad
check "it solicits, and is answered" wait "$router"
cat "$work/router"
answers() { for _ in $(seq 50); do peer echo "$made" 1 100 >/dev/null 2>&1 && return 0; sleep 0.1; done; return 1; }
check "it takes an address of the prefix" answers
both_ways "$made" 1200
check "it answers who is beyond the router" peer echo "$made" 100 1200 "$beyond"
check "and in packets that the router's link takes" peer burst "$made" 100 1352
check "others have fragments" peer echo "$made" 10 1400
stop
check "it asked whether others have its addresses" [ "$(counted Icmp6OutNeighborSolicits)" -gt 1 ]
check "it fragmented what the router's link does not take" [ "$(counted Ip6FragOKs)" -gt 0 ]
echo "done: $count datagrams of each size each way"
