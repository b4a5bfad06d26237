#!/usr/bin/env bash
# Tests two strongSwan daemons on this machine in network namespaces, without a guest and without ESP in any kernel: the
# peer, which does ESP itself (plugin kernel-libipsec, tunnels of ESP in UDP), and the daemon of an emulated host, which
# has the host's address and carries no data. A front separates IKE and ESP, both on UDP port 4500; the program
# `charon_log` beside the daemon mirrors its SAs to the NIC. The peer fetches a file and pings while keys change,
# initiated by either end; peer and daemon are killed and restarted. tshark sees only ESP in UDP.
#   tests/linux/libipsec.sh [LEAST]      of 60 pings while keys change, this many are to be answered: 58
least=${1:-58}
. "$(dirname "$0")/lib.sh"
agent=$(realpath -m "${CHARON_LOG:-target/release/charon_log}")
require
for tool in charon-systemd swanctl python3; do
    PATH=$PATH:/usr/sbin command -v $tool >/dev/null || skip "$tool is missing (Debian: charon-systemd, strongswan-swanctl, libcharon-extra-plugins)"
done
for plugin in kernel-libipsec:libcharon-extra-plugins openssl:libstrongswan-standard-plugins; do
    [ -e "/usr/lib/ipsec/plugins/libstrongswan-${plugin%:*}.so" ] || skip "strongSwan's plugin ${plugin%:*} is missing (Debian: ${plugin#*:})"
done
mkdir "$work/site"
head -c 2M /dev/urandom >"$work/site/bulk"
daemons=$namespace-daemon
declare -A spaces=([host]=$daemons [peer]=$namespace) addresses=([host]=10.77.0.1 [peer]=10.77.0.2) pids
clean_up_all() {
    kill "${pids[@]}" 2>/dev/null || true
    ip netns pids "$daemons" 2>/dev/null | xargs -r kill 2>/dev/null || true
    ip netns del "$daemons" 2>/dev/null || true
    clean_up
}
trap clean_up_all EXIT
ip netns add "$daemons"
ip -n "$daemons" link set lo up

# The daemon's network card, a TAP, is joined to the two sockets of the front.
cat >"$work/card.py" <<'PYTHON'
import fcntl, os, select, socket, struct, sys
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH", b"eth0", 0x1002))  # TUNSETIFF: a TAP without a header
ours, theirs = sys.argv[1:]
front = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
front.bind(ours)
print("there", flush=True)
while True:
    for ready in select.select([tap, front], [], [])[0]:
        try:
            if ready is front:
                os.write(tap, front.recv(65536))
            else:
                front.sendto(os.read(tap, 65536), theirs)
        except OSError:
            pass  # the other end is not up
PYTHON
start_strongswan() { # side
    local folder=$work/$1
    mkdir -p "$folder"
    cat >"$folder/strongswan.conf" <<CONF
charon-systemd {
  load = random nonce openssl kdf sha2 hmac gcm aes pem pkcs1 pubkey x509 kernel-libipsec kernel-netlink socket-default vici
  journal { default = -1 }
  filelog { log { path = $folder/log
    default = 1
    chd = 4
    flush_line = yes } }
  retransmit_timeout = 1.0
  retransmit_tries = 2
  plugins { vici { socket = unix://$folder/vici }
    kernel-libipsec { allow_peer_ts = yes }
    kernel-netlink { fwmark = !0x42 }
    socket-default { fwmark = 0x42 } } }
CONF
    (umask 077 && : >>"$folder/log") # it shows keys
    rm -f "$folder/vici"
    STRONGSWAN_CONF=$folder/strongswan.conf ip netns exec "${spaces[$1]}" /usr/sbin/charon-systemd >>"$folder/out" 2>&1 & pids[$1]=$!
    for attempt in $(seq 200); do [ ! -S "$folder/vici" ] || return 0; sleep 0.05; done
    cat "$folder/out"
    exit 1
}
swan() { # side, words; which plugins are not there is not told
    STRONGSWAN_CONF=$work/$1/strongswan.conf ip netns exec "${spaces[$1]}" timeout 20 swanctl "${@:2}" --uri "unix://$work/$1/vici" 2> >(grep -v "^plugin '" >&2)
}
connection() { # side, the other, when keys change
    cat >"$work/$1/swanctl.conf" <<CONF
connections { c { version = 2
  local_addrs = ${addresses[$1]}
  remote_addrs = ${addresses[$2]}
  proposals = aes256gcm16-prfsha256-x25519
  encap = yes
  dpd_delay = 1s
  local { auth = psk
    id = $1 }
  remote { auth = psk
    id = $2 }
  children { c { mode = tunnel
    local_ts = ${addresses[$1]}/32
    remote_ts = ${addresses[$2]}/32
    rekey_time = $3
    life_time = 1h
    rand_time = 0s
    dpd_action = clear
    esp_proposals = aes256gcm16-x25519 } } } }
secrets { ike-1 { secret = swordfish } }
CONF
    swan "$1" --load-all --noprompt --file "$work/$1/swanctl.conf" >"$work/$1/loaded" 2>&1 || { cat "$work/$1/loaded"; exit 1; }
}
not_so() {
    # The counters are printed at the end.
    kill "$pid" && wait "$pid" || true
    tail -n 40 "$work"/{host,peer}/log | grep -v 'CHD\]  *[0-9]*:'
    cat "$work/log" "$work/agent"
    echo "NOT SO: $1"
    exit 1
}
up() { # who asks
    swan "$1" --initiate --child c >"$work/up" 2>&1 || { cat "$work/up"; not_so "$1 and the other agree"; }
    for attempt in $(seq 50); do ! inside ping -c 1 -W 1 10.77.0.1 >/dev/null || return 0; done
    not_so "a ping is answered"
}
down() { swan "$1" --terminate --ike c >/dev/null 2>&1 || true; }
fetch() {
    inside curl -sS --fail --noproxy '*' --max-time 60 "$@" -o "$work/got" http://10.77.0.1/bulk && cmp "$work/got" "$work/site/bulk"
}
successors() { grep -c 'CHILD_SA c{[0-9]*} established' "$work/$1/log"; }

start --mode http --mirror "$work/sas" --daemon "$work/beside" "$work/linux" --pcap "$work/wire.pcapng"
inside sh -c 'for one in all default nic0; do echo 1 >/proc/sys/net/ipv6/conf/$one/disable_ipv6; done'
ip netns exec "$daemons" python3 "$work/card.py" "$work/linux" "$work/beside" >"$work/card" & pids[card]=$!
until grep -q there "$work/card"; do sleep 0.05; done
ip netns exec "$daemons" sh -c 'for one in all default eth0; do echo 1 >/proc/sys/net/ipv6/conf/$one/disable_ipv6; done'
ip -n "$daemons" link set eth0 address 02:00:00:00:00:01
ip -n "$daemons" addr add 10.77.0.1/24 dev eth0
ip -n "$daemons" link set eth0 up
mirror() { "$agent" "$work/host/log" "$work/sas" 10.77.0.1 10.77.0.2 >>"$work/agent" 2>&1 & pids[agent]=$!; }
for side in host peer; do start_strongswan $side; done
mirror
echo "-- $(swan peer --version | head -1) at both ends"
for who in peer host; do
    echo "-- the ${who/host/emulated host} asks"
    for side in host peer; do connection $side "$([ $side = host ] && echo peer || echo host)" 1h; done
    up $who
    fetch || not_so "a file came"
    down $who
    # This end changes keys about every second.
    connection $who "$([ $who = host ] && echo peer || echo host)" 1s
    before=$(successors peer)
    up $who
    ip netns exec "$namespace" ping -D -i 0.1 -c 60 10.77.0.1 >"$work/pings" & pinging=$!
    fetch --limit-rate 300K || not_so "a file came while keys changed"
    wait $pinging || true
    answers=$(sed -n 's/.*, \([0-9]*\) received.*/\1/p' "$work/pings") changes=$(($(successors peer) - before - 1))
    echo "   $answers of 60 pings, $changes successors"
    # On a busy machine, a message may leave after 200 ms even if the mirror is late, so each such change may cost a
    # ping.
    [ "$answers" -ge "$least" ] && [ "$changes" -ge 2 ] || not_so "keys change, and no packet is lost"
    down $who
done

echo "-- the peer is killed and comes back"
for side in host peer; do connection $side "$([ $side = host ] && echo peer || echo host)" 1h; done
up peer
kill -9 "${pids[peer]}"
wait "${pids[peer]}" || true
for attempt in $(seq 200); do ! swan host --list-sas | grep -q ESTABLISHED || { sleep 0.1; continue; }; break; done
! swan host --list-sas | grep -q ESTABLISHED || not_so "the daemon finds that its peer is dead"
start_strongswan peer
connection peer host 1h
up peer
fetch || not_so "a file came from the peer that is back"
echo "-- the daemon is killed and comes back"
kill -9 "${pids[host]}"
wait "${pids[host]}" || true
fetch || not_so "traffic goes on without the daemon"
kill "${pids[agent]}"
wait "${pids[agent]}" || true
: >"$work/host/log" # what was agreed on is over
start_strongswan host
mirror
connection host peer 1h
up host
fetch || not_so "a file came by what the daemon that is back has agreed on"
stop
grep -E '^(mirror|front|gate|Xfrm|ipsec)' "$work/log" || true
[ "$(counted ipsec_packet_tx_pkts)" -gt 1000 ] || not_so "the NIC makes ESP"
[ "$(counted XfrmInNoStates)" = 0 ] || echo "note: $(counted XfrmInNoStates) packets came by SAs that were over"
if command -v tshark >/dev/null; then
    plain=$(tshark -r "$work/wire.pcapng" -Y 'ip && !esp && !isakmp && !udpencap.nat_keepalive' 2>/dev/null | tee "$work/plain" | wc -l)
    echo "tshark: $(tshark -r "$work/wire.pcapng" -Y 'udp && esp' 2>/dev/null | wc -l) packets of ESP in UDP, $plain of anything else but IKE"
    [ "$plain" = 0 ] || { head "$work/plain"; not_so "the wire shows ESP only"; }
fi
echo done
