#!/usr/bin/env bash
# Unmodified strongSwan keys our NIC. A stock guest with a whole Debian 13 root runs two charons, each in a network namespace with a network
# card: the peer, whose kernel makes ESP, and the daemon of the emulated host, beside which `sa-mirror` runs. That one has the emulated
# host's address; a front lets IKE through to it and nothing of its own out but that, so its kernel carries no packet. Over a
# wire that both meet at, the peer fetches files: transport and tunnel mode, AES-GCM with both key lengths, ESN, PSK and certificates, either side
# as initiator; keys change all along while a file is under way; the daemon is killed, and comes back. tshark sees IKE and ESP only.
# Needs root, for the root is made by debootstrap.
#   tests/linux/ike_guest.sh [KIB]     how much is fetched while keys change; 512 by default, for QEMU interprets the guest
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
server=$(realpath -e "${HTTPS_SERVER:-target/release/examples/https_server}")
agent=$(realpath -e "${SA_MIRROR:-target/x86_64-unknown-linux-gnu/release/sa-mirror}")
kib=${1:-512}
work=$(mktemp -d) pid=
clean_up() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap clean_up EXIT
status=0
"$here/guest/build.sh" && "$here/guest/root.sh" strongswan strongswan-swanctl charon-systemd libcharon-extra-plugins \
    libstrongswan-extra-plugins libstrongswan-standard-plugins iproute2 iputils-ping procps || status=$?
[ "$status" = 0 ] || exit "$status"
root=$here/../../target/roots/strongswan.ext4

mkdir "$work/site"
head -c 64K /dev/urandom >"$work/site/bulk"
head -c "${kib}K" /dev/urandom >"$work/site/long"
for name in bulk long; do sha256sum <"$work/site/$name" | cut -d' ' -f1 >"$work/$name.sum"; done
# An authority, and a certificate for each side.
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
done
tar -C "$work" -cf "$work/certificates.tar" ca.pem host.pem host.key peer.pem peer.key

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
modprobe -a esp4 esp6 xfrm_user virtio_console ext4 virtio_blk
until [ -b /dev/vda ]; do sleep 0.1; done
mkdir -p /mnt
mount -o noatime /dev/vda /mnt
for folder in proc dev sys; do mount --rbind /$folder /mnt/$folder; done
mount -t tmpfs none /mnt/run
cd /guest
chmod +x sa-mirror
failed=0
not_so() { echo "NOT SO: $*"; failed=1; }
until port=/dev/$(basename "$(dirname "$(grep -lx sa-mirror /sys/class/virtio-ports/*/name)")") && [ -c "$port" ]; do sleep 0.1; done

# The peer's card has the address that QEMU gives it; the daemon's has the emulated host's.
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
    ip -n $side link set eth0 up
done
for side in host peer; do
    mkdir -p /mnt/etc/ike/$side/{x509,x509ca,private}
    tar -C /mnt/etc/ike/$side/x509ca -xf certificates.tar ca.pem
    tar -C /mnt/etc/ike/$side/x509 -xf certificates.tar $side.pem
    tar -C /mnt/etc/ike/$side/private -xf certificates.tar $side.key
done

charon() { # side: starts its daemon
    ip netns exec $1 chroot /mnt env STRONGSWAN_CONF=/etc/ike/$1.strongswan /usr/sbin/charon-systemd >>charon-$1.out 2>&1 &
    declare -g "charon_$1=$!" # what is in between replaces itself: the daemon has this number
    for attempt in $(seq 200); do [ -S /mnt/run/$1.vici ] && return 0; sleep 0.1; done
    cat charon-$1.out; return 1
}
swanctl() { # side, words
    local side=$1; shift
    ip netns exec "$side" chroot /mnt env SWANCTL_DIR="/etc/ike/$side" swanctl "$@" --uri "unix:///run/$side.vici"
}
for side in host peer; do
    cat >/mnt/etc/ike/$side.strongswan <<CONF
charon-systemd {
  load = random nonce openssl kdf sha2 hmac gcm aes pem pkcs1 pkcs8 pubkey x509 constraints kernel-netlink socket-default vici
  journal { default = -1 }
  filelog { log { path = /var/log/$side.log
    default = 1
    flush_line = yes } }
  plugins { vici { socket = unix:///run/$side.vici } }
}
CONF
done
connection() { # name, mode, ESP proposal, authentication, and which side rekeys after how long: a connection at both sides
    local side local other me they auth
    for side in host peer; do
        [ $side = host ] && { me=10.77.0.1 they=10.77.0.2 other=peer; } || { me=10.77.0.2 they=10.77.0.1 other=host; }
        if [ "$4" = psk ]; then
            auth="local { auth = psk
              id = $side.test }
            remote { auth = psk
              id = $other.test }"
        else
            auth="local { auth = pubkey
              certs = $side.pem
              id = $side.test }
            remote { auth = pubkey
              cacerts = ca.pem
              id = $other.test }"
        fi
        cat >/mnt/etc/ike/$side/swanctl.conf <<CONF
connections { $1 { version = 2
  local_addrs = $me
  remote_addrs = $they
  proposals = aes256gcm16-prfsha256-x25519
  dpd_delay = 5s
  $auth
  children { $1 { mode = $2
    esp_proposals = $3
    rekey_time = $([ "$side" = "${5:-}" ] && echo "$6" || echo 1h)
    life_time = 2h
    local_ts = $me/32
    remote_ts = $they/32 } } } }
secrets { ike-1 { secret = swordfish } }
CONF
        swanctl $side --load-all --noprompt --file /etc/ike/$side/swanctl.conf >loaded 2>&1 || { cat loaded; return 1; }
    done
}
fetch() { # file, more
    in_peer curl -sS --fail --max-time 120 ${2:-} -o got "http://10.77.0.1/$1" && [ "$(sha256sum <got)" = "$(cat "$1.sum")  -" ]
}
established() { swanctl "$1" --list-sas | grep -q 'INSTALLED'; }
up() { # side, name
    swanctl "$1" --initiate --child "$2" >initiated 2>&1 || { cat initiated; tail -20 /mnt/var/log/{host,peer}.log; return 1; }
    for attempt in $(seq 50); do
        if in_peer ping -c 1 -W 1 10.77.0.1 >/dev/null; then return 0; fi
    done
    return 1
}
down() { # name
    swanctl host --terminate --ike "$1" >/dev/null 2>&1 || true
    for attempt in $(seq 50); do established peer || return 0; sleep 0.1; done
}
suite() { in_peer ip xfrm state | sed -n 's/.*aead \([^ ]*\) 0x\([0-9a-f]*\) .*/\1 \2/p' | awk 'NR == 1 { print $1, length($2) / 2 }'; }

ip netns exec host ./sa-mirror "$port" >agent.log 2>&1 & agent=$!
for side in host peer; do charon $side; done
echo "-- $(swanctl host --version | head -1)"

case_of() { # what, mode, proposal, authentication, initiator
    echo "-- $1, the ${5/host/emulated host} asks"
    connection c "$2" "$3" "$4"
    up "$5" c && fetch bulk || { not_so "$1, $5 asks"; tail -5 /mnt/var/log/{host,peer}.log; }
    echo "   $(suite) bytes; $(swanctl peer --list-sas | grep -o 'ESP[^ ,]*[^,]*' | head -1)"
    down c
}
for initiator in peer host; do
    case_of "transport, AES-128-GCM, PSK" transport aes128gcm16-x25519-noesn psk $initiator
    case_of "transport, AES-256-GCM, ESN, certificates" transport aes256gcm16-x25519-esn pubkey $initiator
    case_of "tunnel, AES-128-GCM, ESN, PSK" tunnel aes128gcm16-x25519-esn psk $initiator
    case_of "tunnel, AES-256-GCM, certificates" tunnel aes256gcm16-x25519-noesn pubkey $initiator
    case_of "tunnel, ChaCha20-Poly1305, PSK" tunnel chacha20poly1305-x25519 psk $initiator
done

children() { grep -o 'CHILD_SA c{[0-9]*} established' /mnt/var/log/peer.log | sort -u | wc -l; }
# One side alone, for stock daemons that rekey at the same moment lose packets by themselves.
for side in host peer; do
    echo "-- the ${side/host/emulated host\'s daemon} changes keys, while a file is under way"
    down c
    connection c tunnel aes256gcm16-x25519-esn psk $side "$REKEY"
    before=$(children)
    up peer c
    fetch long "--limit-rate $RATE" & fetching=$!
    ip netns exec peer ping -i 0.2 -w 100 10.77.0.1 >pings & pinging=$! # no function in between: ping has this number
    wait $fetching || not_so "a file while keys change"
    kill -INT $pinging
    wait $pinging || true
    changes=$(($(children) - before - 1))
    echo "   $(grep 'packet loss' pings); $changes successors"
    grep -q ' 0% packet loss' pings || not_so "no packet is lost when keys change"
    [ "$changes" -ge 3 ] || not_so "keys changed"
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
ip netns exec host ./sa-mirror "$port" >>agent.log 2>&1 & agent=$!
fetch bulk || not_so "and stay when it is back"

echo "-- the daemon is killed and comes back"
kill -9 "$charon_host"
wait "$charon_host" || true
sleep 1
fetch bulk || not_so "traffic goes on without the daemon"
rm -f /mnt/run/host.vici
charon host
connection c tunnel aes256gcm16-x25519-esn psk
up host c || not_so "the daemon is back"
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
(cd "$work" && "$here/guest/boot.sh" -t 900 -m 1536 -e "HOST_MAC=$mac" -e "REKEY=${REKEY:-4s}" -e "RATE=${RATE:-20K}" \
    -f "$agent" -f bulk.sum -f long.sum -f certificates.tar script \
    -netdev dgram,id=n0,local.type=unix,local.path=guest,remote.type=unix,remote.path=port -device virtio-net-pci,netdev=n0 \
    -netdev dgram,id=n1,local.type=unix,local.path=linux,remote.type=unix,remote.path=beside -device virtio-net-pci,netdev=n1,mac=$mac \
    -chardev socket,id=sas,path=sas -device virtio-serial-pci -device virtserialport,chardev=sas,name=sa-mirror \
    -drive "file=$root,if=none,id=root,format=raw,snapshot=on" -device virtio-blk-pci,drive=root) || status=$?
kill "$pid"
wait "$pid" || true
pid=
grep -E '^(mirror|front|Xfrm|ipsec)' "$work/log" || true
[ "$status" = 0 ] || exit "$status"
counted() { awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }' "$work/log"; }
[ "$(counted front_blocked_esp)" -gt 0 ] || { echo "NOT SO: the mirrored kernel tried to send ESP, and it was blocked"; exit 1; }
[ "$(counted XfrmInNoStates)" = 0 ] || { echo "NOT SO: whatever came found its SA"; exit 1; }
[ "$(counted ipsec_packet_tx_pkts)" -gt 100 ] || { echo "NOT SO: the NIC made ESP"; exit 1; }
if command -v tshark >/dev/null; then
    plain=$(tshark -r "$work/wire.pcapng" -Y 'ip && !esp && !isakmp' 2>/dev/null | tee "$work/plain" | wc -l)
    echo "tshark: $(tshark -r "$work/wire.pcapng" -Y esp 2>/dev/null | wc -l) packets of ESP, $plain of anything else"
    [ "$plain" = 0 ] || { head "$work/plain"; echo "NOT SO: the emulated host sends and gets ESP only"; exit 1; }
fi
echo done
