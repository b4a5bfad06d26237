#!/usr/bin/env bash
# Tests a stock Linux kernel in a QEMU guest at the other end of ESP: transport and tunnel mode, IPv4 and IPv6, in UDP;
# AES-GCM with both key lengths, ChaCha20-Poly1305 and AES-GMAC; with and without extended sequence numbers. Over a wire
# that loses, reorders and duplicates packets, the guest pings the emulated host and moves files both ways through each
# pair of SAs; ESP is done by the emulated host, by its NIC under the host's headers, and by its NIC alone. Then keys
# change at both ends during transfers, and no packet arrives without an SA. At the end tshark, with the keys, checks
# the packets on the wire: every ICV is valid, and everything is ESP. Needs no root.
#   tests/linux/ipsec_guest.sh [KIB]     how much goes each way through each; 64 by default, for QEMU interprets the guest
. "$(dirname "$0")/guest/lib.sh"
server=$(realpath -e "${HTTPS_SERVER:-target/release/https_server}") kib=${1:-64}

mkdir "$work/site"
head -c "${kib}K" /dev/urandom >"$work/site/bulk"
hash=$(sha256sum <"$work/site/bulk" | cut -d' ' -f1)
head -c 256K /dev/urandom | tee "$work/site/long" >"$work/initial"
long_hash=$(sha256sum <"$work/initial" | cut -d' ' -f1)
host4=10.77.0.1 host6=fd00::1 number=16 offload= cases=()

# Each pair of SAs has its own address of the guest, so that one boot suffices. The emulated host reads the same words
# as ip in the guest; policies have the opposite direction there.
pair() { # name, family, mode, suite, flags, further words of the SA; of a tunnel between others: their addresses, and the guest's inside
    local name=$1 family=$2 mode=$3 suite=$4 flags=$5 more=$6 aead key template=
    local guest host=host$family spi=$((0x1000 + 16 * number))
    host=${!host}
    guest=$([ "$family" = 4 ] && echo "10.77.0.$number" || echo "fd00::$number")
    local outer_host=${7:-$host} outer_guest=${8:-$guest}
    guest=${9:-$guest}
    case $suite in
    aes128) aead='rfc4106(gcm(aes))' key=20 ;;
    aes256) aead='rfc4106(gcm(aes))' key=36 ;;
    gmac) aead='rfc4543(gcm(aes))' key=20 ;;
    chacha20) aead='rfc7539esp(chacha20,poly1305)' key=36 ;;
    esac
    [ "$mode" = transport ] || template=yes
    local direction from to spi_of outer_from outer_to
    for direction in out in; do
        if [ $direction = out ]; then
            from=$host to=$guest outer_from=$outer_host outer_to=$outer_guest spi_of=$spi
        else
            from=$guest to=$host outer_from=$outer_guest outer_to=$outer_host spi_of=$((spi + 1))
        fi
        key_of=0x$(head -c "$key" /dev/urandom | od -An -v -tx1 | tr -d ' \n')
        local state="state add src $outer_from dst $outer_to proto esp spi $spi_of reqid $number mode $mode replay-window 64 $flags aead $aead $key_of 128 $more"
        local policy="policy add src $from dst $to dir DIRECTION priority 10 tmpl ${template:+src $outer_from dst $outer_to} proto esp reqid $number mode $mode"
        printf '%s\n%s\n' "$state${offload:+ offload $offload}" "${policy/DIRECTION/$direction}" >>"$work/keys"
        local other=in
        [ $direction = out ] || other=out
        # shellcheck disable=SC2001
        printf 'ip xfrm %s\nip xfrm %s\n' "$(sed "s/aead \([^ ]*\)/aead '\1'/" <<<"$state")" "${policy/DIRECTION/$other}" >>"$work/xfrm"
        sa_of_tshark "$outer_from" "$outer_to" "$spi_of" "$suite" "$key_of" "$flags"
        [ -z "${successor-}" ] || rekey
    done
    cases+=("${offload:+$offload offload, }$name $family $guest $host")
    number=$((number + 1))
}
# Gives the current SA a successor during a transfer: the host's file does so at once and removes the old transmit SA.
# The guest has the receive SA from the beginning; when it receives the host's packets under that SA, it switches its
# own.
rekey() {
    local new=$((spi_of + 8)) id="src $outer_from dst $outer_to proto esp" words
    key_of=0x$(head -c "$key" /dev/urandom | od -An -v -tx1 | tr -d ' \n')
    echo "state rekey $id spi $spi_of new-spi $new aead $aead $key_of 128" >>"$work/changes"
    words="ip xfrm state add $id spi $new reqid $number mode $mode replay-window 64 $flags aead '$aead' $key_of 128"
    if [ $direction = out ]; then
        echo "state delete $id spi $spi_of" >>"$work/deletions"
        echo "$words" >>"$work/xfrm"
        echo "$id spi $new" >>"$work/awaited"
    else
        printf '%s\nip xfrm state delete %s spi %s\n' "$words" "$id" "$spi_of" >>"$work/xfrm_changes"
    fi
    sa_of_tshark "$outer_from" "$outer_to" "$new" "$suite" "$key_of" "$flags"
}
sa_of_tshark() { # source, destination, SPI, suite, key, flags
    local kind=IPv4 name='AES-GCM with 16 octet ICV [RFC4106]' bits=32-bit spi
    [ "$4" != gmac ] || return 0 # it knows none
    [[ $1 != *:* ]] || kind=IPv6
    [ "$4" != chacha20 ] || name='ChaCha20 with Poly1305 [RFC7634]'
    [[ $6 != *esn* ]] || bits=64-bit
    spi=$(printf '0x%08x' "$3")
    printf '%s %s\t"%s","%s","%s","%s","%s","%s","NULL","","%s","0x00000000"\n' "$4" "$bits" "$kind" "$1" "$2" "$spi" "$name" "$5" "$bits" >>"$work/esp_sa"
}
for offload in "" crypto packet; do
    pair "transport, AES-128-GCM" 4 transport aes128 "" ""
    pair "transport, AES-256-GCM, ESN" 4 transport aes256 "flag esn" ""
    pair "tunnel, AES-128-GCM, ESN" 4 tunnel aes128 "flag esn" ""
    pair "tunnel, ChaCha20-Poly1305" 4 tunnel chacha20 "" ""
    pair "IPv6 transport, AES-256-GCM, ESN" 6 transport aes256 "flag esn" ""
    pair "IPv6 tunnel, ChaCha20-Poly1305, ESN" 6 tunnel chacha20 "flag esn" ""
    pair "IPv6 in an IPv4 tunnel, AES-128-GCM" 6 tunnel aes128 "flag af-unspec" "" "$host4" "10.77.0.$number"
    pair "transport, AES-GMAC, ESN" 4 transport gmac "flag esn" ""
    # The guest is reachable only through the tunnel's other end.
    pair "tunnel to another network, AES-128-GCM, ESN" 4 tunnel aes128 "flag esn" "" "$host4" "10.77.0.$number" "172.30.0.$number"
    # Devices support ESP in UDP only with packet offload.
    [ "$offload" = crypto ] || pair "tunnel in UDP, AES-256-GCM, ESN" 4 tunnel aes256 "flag esn" "encap espinudp 4500 4500 0.0.0.0"
    [ "$offload" = crypto ] || pair "transport in UDP, AES-128-GCM" 4 transport aes128 "" "encap espinudp 4500 4500 0.0.0.0"
    [ "$offload" = crypto ] || pair "IPv6 transport in UDP, AES-256-GCM, ESN" 6 transport aes256 "flag esn" "encap espinudp 4500 4500 ::"
    successor=yes pair "tunnel, AES-256-GCM, ESN, other keys" 4 tunnel aes256 "flag esn" ""
    [ -z "$offload" ] || continue
    pair "IPv6 tunnel, AES-GMAC" 6 tunnel gmac "" ""
    pair "transport, ChaCha20-Poly1305, ESN" 4 transport chacha20 "flag esn" ""
    pair "IPv4 in an IPv6 tunnel, AES-128-GCM" 4 tunnel aes128 "flag af-unspec" "" "$host6" "fd00::$number"
done
printf '%s\n' "${cases[@]}" >"$work/cases"
cat "$work/deletions" >>"$work/changes"

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
cd /guest
modprobe -a esp4 esp6 xfrm_user
ip link set eth0 up
for number in $(seq 16 $((15 + $(wc -l <cases)))); do
    ip addr add "10.77.0.$number/24" dev eth0
    ip addr add "fd00::$number/64" dev eth0 nodad
    if grep -q " 172.30.0.$number " cases; then ip addr add "172.30.0.$number/32" dev eth0; fi
done
# Linux receives ESP in UDP through a socket with the option UDP_ENCAP_ESPINUDP.
python3 -c 'import socket, time
four, six = (socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6))
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
for s in four, six: s.bind(("", 4500)); s.setsockopt(17, 100, 2)
time.sleep(1e6)' &
. ./xfrm
# In Linux, policies also apply to the UDP around ESP (a keying daemon exempts its socket), ...
ip xfrm policy add src 10.77.0.0/24 dst 10.77.0.0/24 proto udp dport 4500 dir in priority 1
ip xfrm policy add src fd00::/64 dst fd00::/64 proto udp dport 4500 dir in priority 1
# ... and to neighbour discovery.
for direction in in out; do
    for type in 135 136; do
        ip xfrm policy add src fd00::/64 dst fd00::/64 proto ipv6-icmp type $type dir $direction priority 1
    done
done
failed=0
while read -r line; do
    set -- $line
    host=${*: -1} guest=${*: -2:1} family=${*: -3:1} name=${line% "$family" "$guest" "$host"}
    url=$([ "$family" = 4 ] && echo "http://$host" || echo "http://[$host]")
    echo "-- $name"
    try() { "$@" || { echo "NOT SO: $*"; failed=1; return 1; }; }
    for attempt in 1 2 3 4; do # what finds neighbours may be lost as well
        if ping -"$family" -c 2 -i 0.2 -W 1 -I "$guest" "$host" >ping; then break; fi
    done
    grep -q ' 0% packet loss\|[1-9] packets received' ping || { cat ping; echo "no answer"; failed=1; continue; }
    # Some packets of both directions are complete.
    try curl -sS --fail --max-time 60 --interface "$guest" -o got "$url/bulk" || continue
    [ "$(sha256sum <got)" = "$HASH  -" ] || { echo "what came is not what was sent"; failed=1; }
    answer=$(curl -sS --fail --max-time 60 --interface "$guest" -T got "$url/") || failed=1
    [ "${answer%%$'\n'*}" = "$(stat -c %s got) $HASH" ] || { echo "$answer: what went is not what arrived"; failed=1; }
done <cases

echo "-- other keys, with files under way"
others=$(grep 'other keys' cases)
# Slow enough that most of the data follows the change of keys, in packets that fill the path.
downs=() ups=()
while read -r line; do
    set -- $line
    host=${*: -1} guest=${*: -2:1}
    curl -sS --fail --max-time 90 --limit-rate 60K --interface "$guest" -o "down-$guest" "http://$host/long" & downs+=($!)
    curl -sS --fail --max-time 90 --limit-rate 60K --interface "$guest" -T /guest/initial "http://$host/" >"up-$guest" & ups+=($!)
done <<<"$others"
until [ "$(cat down-* 2>/dev/null | wc -c)" -gt 20000 ]; do sleep 0.1; done
echo "CHANGE KEYS"
received() { # by an SA, in packets
    ip -s xfrm state get $1 2>/dev/null | sed -n '/lifetime current/,$ s/.*, \([0-9]*\)(packets).*/\1/p'
}
while read -r id; do
    for attempt in $(seq 300); do [ "$(received "$id")" = 0 ] || break; sleep 0.1; done
    [ "$(received "$id")" -gt 0 ] || { echo "NOT SO: the host sends by $id"; failed=1; }
done <awaited
. ./xfrm_changes
while read -r line; do
    set -- $line
    guest=${*: -2:1}
    wait "${downs[0]}" && wait "${ups[0]}" || { echo "NOT SO: files went on under other keys"; failed=1; }
    downs=("${downs[@]:1}") ups=("${ups[@]:1}")
    [ "$(sha256sum <"down-$guest")" = "$LONG_HASH  -" ] || { echo "what came is not what was sent"; failed=1; }
    [ "$(head -n 1 "up-$guest")" = "$(stat -c %s initial) $(sha256sum <initial | cut -d' ' -f1)" ] || { echo "$(cat "up-$guest"): what went is not what arrived"; failed=1; }
done <<<"$others"
cat /proc/net/xfrm_stat >statistics
grep -v ' *0$' statistics || true
awk '$1 == "XfrmInNoStates" && $2 > 0 { exit 1 }' statistics || { echo "NOT SO: whatever came found its SA"; failed=1; }
exit $failed
SCRIPT

(cd "$work" && exec "$server" site --mode http --dgram port guest --address6 "$host6" --keys keys --key-changes changes \
    --pcap wire.pcapng --loss 0.005 --reorder 0.01 --duplicate 0.002 >log 2>&1) & pid=$!
until grep -q '^Ctrl-C' "$work/log" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "the server did not start"; exit 1; }
    sleep 0.05
done
(cd "$work" && "$here/guest/boot.sh" -t 400 -e "HASH=$hash" -e "LONG_HASH=$long_hash" \
    -f cases -f xfrm -f xfrm_changes -f awaited -f initial script \
    -netdev dgram,id=n0,local.type=unix,local.path=guest,remote.type=unix,remote.path=port \
    -device virtio-net-pci,netdev=n0) | while IFS= read -r line; do
    printf '%s\n' "$line"
    [ "$line" != "CHANGE KEYS" ] || kill -HUP "$pid"
done || status=$?
kill "$pid"
wait "$pid" || true
pid=
grep -iE '^(xfrm|ipsec|wire_(lost|duplicated))' "$work/log" || true
[ "$status" = 0 ] || { cat "$work/log"; exit "$status"; }

counted() { awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }' "$work/log"; }

look_at_the_wire() {
    command -v tshark >/dev/null || { echo "tshark is missing: nobody else looks at the wire"; return; }
    local sas=() kind line plain good bad known=0
    local -A form=()
    # Older versions support neither ChaCha20-Poly1305 nor extended sequence numbers, nor the option to choose.
    takes() {
        local said
        said=$(tshark -r "$work/wire.pcapng" -c 1 -o "uat:esp_sa:$1" 2>&1) && [[ $said != *WARNING* ]]
    }
    while IFS=$'\t' read -r kind line; do
        if [ -z "${form[$kind]-}" ]; then
            form[$kind]=none
            if takes "$line"; then form[$kind]=all
            elif [[ $kind = *32-bit ]] && takes "${line%,'"32-bit"',*}"; then form[$kind]=short; fi
        fi
        case ${form[$kind]} in
        all) ;;
        short) line=${line%,'"32-bit"',*} ;;
        none) continue ;;
        esac
        sas+=(-o "uat:esp_sa:$line") known=$((known + 1))
    done <"$work/esp_sa"
    count() {
        tshark -r "$work/wire.pcapng" -o esp.enable_encryption_decode:TRUE -o esp.enable_authentication_check:TRUE \
            "${sas[@]}" -Y "$1" 2>>"$work/tshark.log" | wc -l
    }
    # Neighbour discovery works without ESP, and the guest looks for routers and reports its groups.
    plain=$(count 'ip.src == 10.77.0.1 && !esp && !arp || ipv6.src == fd00::1 && !esp && icmpv6.type < 133')
    good=$(count 'esp.icv_good == 1') bad=$(count 'esp.icv_bad == 1')
    echo "tshark, knowing $known of $(wc -l <"$work/esp_sa") SAs: $good ICVs good, $bad bad; $plain packets without ESP"
    [ "$plain" = 0 ] && [ "$good" -gt 100 ] && [ "$bad" = 0 ] || {
        head "$work/tshark.log"
        echo "NOT SO: every ICV is good, and the host sends nothing but ESP"
        exit 1
    }
}

for who in sw crypto packet; do
    [ "$(counted "ipsec_${who}_tx_pkts")" -gt 50 ] && [ "$(counted "ipsec_${who}_rx_pkts")" -gt 50 ] || {
        echo "NOT SO: ESP was made by the host, under its headers, and by the NIC alone"
        exit 1
    }
done
grep -q '^keys changed as changes says, 6 SAs came' "$work/log" && [ "$(counted XfrmInNoStates)" = 0 ] || {
    grep '^keys' "$work/log"
    echo "NOT SO: keys changed, and whatever came found its SA"
    exit 1
}
look_at_the_wire
echo "done: $kib KiB each way through each"
