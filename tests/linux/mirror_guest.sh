#!/usr/bin/env bash
# Tests that any keying of a Linux machine keys our NIC: `ip xfrm` in a network namespace of a stock guest,
# `linux-mirror sa` beside it, and a virtio-serial port from there to the emulated host. That namespace has no network
# card: the host applies its SAs and policies. Their other end is the guest itself. SAs are added, replaced during a
# transfer, and deleted; the agent is killed and restarted; it sleeps while the kernel changes more SAs than fit its
# socket; counters and expiries are reported back; SAs that cannot be mirrored are logged without keys. Needs no root.
#   tests/linux/mirror_guest.sh [MANY]     so many SAs come and go while the agent sleeps: 7000 are more than it can be told of;
#                                          none by default, for QEMU interprets the guest
. "$(dirname "$0")/guest/lib.sh"
server=$(realpath -e "${HTTPS_SERVER:-target/release/https_server}")
agent=$(realpath -e "${LINUX_MIRROR:-target/x86_64-unknown-linux-gnu/release/linux-mirror}")
many=${1:-0}
mkdir "$work/site"
head -c 64K /dev/urandom >"$work/site/bulk"
head -c 192K /dev/urandom >"$work/site/long"
for name in bulk long; do sha256sum <"$work/site/$name" | cut -d' ' -f1 >"$work/$name.sum"; done
head -c 1440 /dev/urandom | od -An -v -tx1 -w36 | tr -d ' ' >"$work/keys"

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
cd /guest
cp keys all-keys
modprobe -a esp4 esp6 xfrm_user virtio_console
chmod +x linux-mirror
ip link set eth0 up
ip netns add keyed
until port=/dev/$(basename "$(dirname "$(grep -lx sas /sys/class/virtio-ports/*/name)")") && [ -c "$port" ]; do sleep 0.1; done
failed=0
not_so() { echo "NOT SO: $*"; failed=1; }
keyed() { ip netns exec keyed "$@"; }
mirror() { ip netns exec keyed ./linux-mirror sa "$port" >>agent.log 2>&1 & agent=$!; } # no function in between: the agent has this number
key() { # bytes: those of the next key
    echo "0x$(head -n 1 keys | cut -c "1-$((2 * $1))")"
    sed -i 1d keys
}

# A pair of SAs between the host and an address of the guest; both the guest's kernel and the namespace that keys the
# host have them.
sas() { # number, family, mode, spi, aead, bytes of key, more words
    local host=10.77.0.1 guest=10.77.0.$1 spi=$4 out in
    [ "$2" = 4 ] || { host=fd77::1 guest=fd77::$1; }
    out="state add src $host dst $guest proto esp spi $spi reqid $1 mode $3 replay-window 64 ${7:-} aead $5 $(key "$6") 128"
    in="state add src $guest dst $host proto esp spi $((spi + 1)) reqid $1 mode $3 replay-window 64 ${7:-} aead $5 $(key "$6") 128"
    # The receiver gets the SA before the sender.
    ip xfrm $out
    keyed ip xfrm $in
    keyed ip xfrm $out ${8:-}
    ip xfrm $in
}
gone() { # number, family, spi
    local host=10.77.0.1 guest=10.77.0.$1
    [ "$2" = 4 ] || { host=fd77::1 guest=fd77::$1; }
    for where in "" keyed; do
        $where ip xfrm state delete src "$host" dst "$guest" proto esp spi "$3"
        $where ip xfrm state delete src "$guest" dst "$host" proto esp spi $(($3 + 1))
    done
}
policies() { # number, family, mode
    local host=10.77.0.1 guest=10.77.0.$1 there back
    [ "$2" = 4 ] || { host=fd77::1 guest=fd77::$1; }
    there="src $host dst $guest" back="src $guest dst $host"
    tmpl() { [ "$2" = transport ] && echo "tmpl proto esp reqid $3 mode transport" || echo "tmpl $1 proto esp reqid $3 mode tunnel"; }
    keyed ip xfrm policy add $there dir out priority 10 $(tmpl "$there" "$3" "$1")
    keyed ip xfrm policy add $back dir in priority 10 $(tmpl "$back" "$3" "$1")
    ip xfrm policy add $there dir in priority 10 $(tmpl "$there" "$3" "$1")
    ip xfrm policy add $back dir out priority 10 $(tmpl "$back" "$3" "$1")
    if [ "$2" = 4 ]; then ip addr add "$guest/24" dev eth0; else ip addr add "$guest/64" dev eth0 nodad; fi
}
answers() { # number, family
    local host=10.77.0.1 guest=10.77.0.$1
    [ "$2" = 4 ] || { host=fd77::1 guest=fd77::$1; }
    for attempt in $(seq 30); do
        if ping -"$2" -c 1 -W 1 -I "$guest" "$host" >/dev/null; then return 0; fi
        sleep 0.2
    done
    return 1
}
fetch() { # number, family, file, more
    local host=10.77.0.1 guest=10.77.0.$1
    [ "$2" = 4 ] || { host='[fd77::1]' guest=fd77::$1; }
    curl -sS --fail --max-time 60 --interface "$guest" ${4:-} -o "got-$1" "http://$host/$3" &&
        [ "$(sha256sum <"got-$1")" = "$(cat "$3.sum")  -" ]
}
count() { # in the keyed namespace: packets of the SA named by the rest
    keyed ip -s xfrm state get $* 2>/dev/null | sed -n '/lifetime current/,$ s/.*, \([0-9]*\)(packets).*/\1/p'
}
# Neighbour discovery works without ESP.
for direction in in out; do
    for type in 135 136; do
        for where in "" keyed; do
            $where ip xfrm policy add src fd77::/64 dst fd77::/64 proto ipv6-icmp type $type dir $direction priority 1
        done
    done
done

echo "-- SAs that were there before the agent, and SAs that come when it is there"
policies 16 4 transport; sas 16 4 transport 0x1000 'rfc4106(gcm(aes))' 20
mirror
policies 17 4 tunnel; sas 17 4 tunnel 0x1100 'rfc4106(gcm(aes))' 36 "flag esn"
policies 18 6 transport; sas 18 6 transport 0x1200 'rfc7539esp(chacha20,poly1305)' 36 "flag esn"
policies 19 6 tunnel; sas 19 6 tunnel 0x1300 'rfc4543(gcm(aes))' 20
for pair in "16 4" "17 4" "18 6" "19 6"; do
    answers $pair || not_so "$pair: an answer"
    fetch $pair bulk || not_so "$pair: a file"
done

echo "-- successors, with a file under way"
fetch 17 4 long "--limit-rate 60K" & fetching=$!
until [ "$(stat -c %s got-17 2>/dev/null || echo 0)" -gt 20000 ] && kill -0 $fetching; do sleep 0.1; done
sas 17 4 tunnel 0x1108 'rfc4106(gcm(aes))' 36 "flag esn"
for attempt in $(seq 100); do [ "$(count src 10.77.0.1 dst 10.77.0.17 proto esp spi 0x1108)" -eq 0 ] || break; sleep 0.1; done
gone 17 4 0x1100
wait $fetching || not_so "the file went on under other keys"
awk '$1 == "XfrmInNoStates" && $2 > 0 { exit 1 }' /proc/net/xfrm_stat || not_so "whatever came found its SA"

echo "-- the kernel is told what the host did"
sent=0
for attempt in $(seq 50); do
    sent=$(count src 10.77.0.1 dst 10.77.0.16 proto esp spi 0x1000) received=$(count src 10.77.0.16 dst 10.77.0.1 proto esp spi 0x1001)
    [ "$sent" -gt 10 ] && [ "$received" -gt 10 ] && break
    sleep 0.2
done
echo "$sent packets sent, $received received by a namespace without a network card"
[ "$sent" -gt 10 ] && [ "$received" -gt 10 ] || not_so "counters came back"
ip netns exec keyed ip xfrm monitor >monitor & monitor=$!
policies 20 4 transport; sas 20 4 transport 0x1400 'rfc4106(gcm(aes))' 20 "" "limit packet-soft 5 limit packet-hard 10"
for attempt in $(seq 60); do
    ping -c 1 -W 1 -I 10.77.0.20 10.77.0.1 >/dev/null || true
    if grep -q 'hard 1' monitor; then break; fi
    sleep 0.3
done
kill $monitor
grep -q 'hard 0' monitor && grep -q 'hard 1' monitor || { cat monitor; not_so "soft and hard limits were told"; }
[ -z "$(count src 10.77.0.1 dst 10.77.0.20 proto esp spi 0x1400)" ] || not_so "an SA that is used up is gone"

echo "-- the agent is killed and comes back"
kill -9 $agent
wait $agent || true
fetch 16 4 bulk || not_so "SAs stay without an agent"
policies 21 4 transport; sas 21 4 transport 0x1500 'rfc4106(gcm(aes))' 20
gone 19 6 0x1300
if answers 21 4; then not_so "nobody brings SAs while the agent is dead"; fi
mirror
answers 21 4 || not_so "SAs that came without an agent"
fetch 16 4 bulk || not_so "SAs that stayed"
if ping -6 -c 1 -W 1 -I fd77::19 fd77::1 >/dev/null; then not_so "SAs that went without an agent are gone"; fi

if [ "$MANY" -gt 0 ]; then
echo "-- more changes than the kernel can tell of"
kill -STOP $agent
policies 22 4 transport
for spi in $(seq 8192 $((8191 + MANY))); do
    echo "xfrm state add src 10.77.0.1 dst 10.77.1.1 proto esp spi $spi reqid 9 mode transport aead rfc4106(gcm(aes)) 0x$(printf %08x $spi)000102030405060708090a0b0c0d0e0f 128"
done >batch
keyed ip -batch batch
sed 's/ add / delete /; s/ reqid .*//' batch >undone
sas 22 4 transport 0x1600 'rfc4106(gcm(aes))' 20
keyed ip -batch undone
kill -CONT $agent
answers 22 4 || not_so "what was dropped was asked for again"
fi

echo "-- what cannot be mirrored"
keyed ip xfrm state add src 10.77.0.1 dst 10.77.0.99 proto esp spi 0x1700 mode transport enc 'cbc(aes)' "$(key 16)" auth-trunc 'hmac(sha256)' "$(key 32)" 128
keyed ip xfrm state add src 10.77.0.98 dst 10.77.0.99 proto esp spi 0x1701 mode transport aead 'rfc4106(gcm(aes))' "$(key 20)" 128
keyed ip xfrm policy add src 10.77.0.1 dst 10.77.0.99 dir out priority 10 tmpl proto ah reqid 9 mode transport
sleep 1
cut -c 1-32 all-keys >beginnings
if grep -qif beginnings agent.log; then not_so "no key is in what the agent says"; fi
exit $failed
SCRIPT

(cd "$work" && exec "$server" site --mode http --dgram port guest --mirror sas --pcap wire.pcapng >log 2>&1) & pid=$!
until grep -q '^Ctrl-C' "$work/log" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "the server did not start"; exit 1; }
    sleep 0.05
done
[ "$(stat -c %a "$work/sas")" = 600 ] || { echo "NOT SO: only its owner may open the socket"; exit 1; }
(cd "$work" && "$here/guest/boot.sh" -t 400 -e "MANY=$many" -f "$agent" -f keys -f bulk.sum -f long.sum script \
    -netdev dgram,id=n0,local.type=unix,local.path=guest,remote.type=unix,remote.path=port \
    -device virtio-net-pci,netdev=n0 \
    -chardev socket,id=sas,path=sas -device virtio-serial-pci -device virtserialport,chardev=sas,name=sas) || status=$?
kill "$pid"
wait "$pid" || true
pid=
grep -E '^mirror' "$work/log" || true
[ "$status" = 0 ] || { cat "$work/log"; exit "$status"; }
for claim in 'SA 0x1700 .* is not installed: the algorithm' 'SA 0x1701 .* is not installed: neither address' 'policy [0-9]* drops its packets: its templates'; do
    grep -q "^mirror: $claim" "$work/log" || { echo "NOT SO: it is told that '$claim'"; exit 1; }
done
# At the beginning, after the agent's return, and after missed changes.
snapshots=$(awk '$1 == "mirror_snapshots" { print $2 }' "$work/log")
[ "$snapshots" -ge $((many > 0 ? 3 : 2)) ] || { echo "NOT SO: $snapshots snapshots were whole"; exit 1; }
if cut -c 1-32 "$work/keys" | grep -qif - "$work/log"; then echo "NOT SO: no key is in what the host says"; exit 1; fi
echo done
