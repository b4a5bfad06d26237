#!/usr/bin/env bash
# Tests a stock Linux kernel in a QEMU guest as the host of nvme_target: discovery, the four digest settings under fio,
# the commands of nvme-cli, two subsystems and two paths to one of them, a target that is killed during writes and
# restarted; and fio once more with the target on an emulated host, whose NIC computes the digests. Needs no root.
#   tests/linux/nvme_guest.sh [all|cli|digests|kill|nic]
# Environment: NVME_TARGET, the program (target/release/nvme_target by default); PORT on this machine (14420), and
# the next one.
. "$(dirname "$0")/guest/lib.sh"
target=$(realpath -e "${NVME_TARGET:-target/release/nvme_target}") port=${PORT:-14420} part=${1:-all}
nqn=nqn.2026-01.test:disk
second=''
clean_up() {
    [ -z "$pid$second" ] || kill -9 $pid $second 2>/dev/null || true
    wait 2>/dev/null
    rm -rf "$work"
}

# The guest's address, the target's address, and the route between them.
own=10.0.2.15 at=10.0.2.2 netdev=user,id=n0,net=10.0.2.0/24,host=10.0.2.2

serve() { # options of nvme_target
    serve_at --listen "127.0.0.1:$port" --advertise "10.0.2.2:$port" "$@"
}
serve_at() {
    : >"$work/log"
    "$target" --nqn "$nqn" "$@" >"$work/log" 2>&1 & pid=$!
    until grep -q '^ready' "$work/log"; do
        kill -0 "$pid" 2>/dev/null || { cat "$work/log"; echo "the target did not start"; exit 1; }
        sleep 0.05
    done
}
stop() { kill -9 "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; pid=; }

guest() { # script -> its output, line by line; what it asks of this end is done
    local status=0
    { cat "$work/prologue"; cat "$1"; } >"$work/script"
    "$here/guest/boot.sh" -t 240 -e "PORT=$port" -e "NQN=$nqn" -e "OWN=$own" -e "AT=$at" "$work/script" \
        -netdev "$netdev" -device virtio-net-pci,netdev=n0 >"$work/fifo" & local boot=$!
    while IFS= read -r line; do
        echo "$line" | tee -a "$work/output"
        case $line in
        "please kill the target") stop ;;
        "please start the target") serve "${again[@]}" ;;
        esac
    done <"$work/fifo"
    wait "$boot" || status=$?
    [ "$status" = 0 ] || { cat "$work/log"; exit "$status"; }
}
mkfifo "$work/fifo"

cat >"$work/prologue" <<'SCRIPT'
set -euo pipefail
ip addr add "$OWN/24" dev eth0
ip link set eth0 up
mkdir -p /etc/nvme
id=11111111-2222-3333-4444-555555555555
echo "nqn.2014-08.org.nvmexpress:uuid:$id" >/etc/nvme/hostnqn
echo "$id" >/etc/nvme/hostid
modprobe nvme-tcp
disk=/dev/nvme0n1
fail() { echo "NOT SO: $*"; dmesg | grep -i nvme | tail -30; exit 1; }
connect() { timeout 30 nvme connect -t tcp -a "$AT" -s "$PORT" -n "$NQN" --nr-io-queues=2 "$@" >/dev/null
    for _ in {1..100}; do if [ -b "$disk" ]; then return 0; fi; sleep 0.1; done; fail "a disk after connect $*"; }
disconnect() { has 'disconnected 1' nvme disconnect -n "$NQN"; }
has() { "${@:2}" >answer 2>&1 || fail "${*:2}: $(cat answer)"; grep -qE "$1" answer || fail "${*:2} says $1: $(cat answer)"; }
fails() { ! "$@" >/dev/null 2>&1 || fail "this should have failed: $*"; }
SCRIPT

cat >"$work/cli" <<'SCRIPT'
echo "== discovery and nvme-cli"
nvme discover -t tcp -a 10.0.2.2 -s "$PORT" >found
grep -q "subnqn: *$NQN" found || fail "discovery finds the subsystem: $(cat found)"
grep -q 'traddr: *10.0.2.2' found || fail "discovery tells the advertised address"
connect
has 'mn *: nic-offload' nvme id-ctrl /dev/nvme0
has 'lbads:9 .*in use' nvme id-ns "$disk"
has '0x2$' nvme list-ns /dev/nvme0
has 'uuid' nvme ns-descs "$disk"
has 'critical_warning.*: 0' nvme smart-log /dev/nvme0
has 'frs1' nvme fw-log /dev/nvme0
has 'ACS6 .*Identify' nvme effects-log /dev/nvme0
has success nvme flush "$disk"
head -c 4096 /dev/urandom >a
head -c 4096 /dev/urandom >b
nvme write "$disk" -s 8 -c 7 -z 4096 -d a >/dev/null
nvme compare "$disk" -s 8 -c 7 -z 4096 -d a >/dev/null
fails nvme compare "$disk" -s 8 -c 7 -z 4096 -d b
nvme verify "$disk" -s 8 -c 7 >/dev/null
nvme write-uncor "$disk" -s 9 -c 0 >/dev/null
fails nvme read "$disk" -s 8 -c 7 -z 4096 -d c
fails nvme verify "$disk" -s 8 -c 7
nvme write-zeroes "$disk" -s 8 -c 3 >/dev/null
nvme read "$disk" -s 8 -c 7 -z 4096 -d c >/dev/null
{ head -c 2048 /dev/zero; tail -c 2048 a; } | cmp - c || fail "write-zeroes makes zeros, and no more"
nvme dsm "$disk" --ad --slbs=12 --blocks=4 >/dev/null
nvme read "$disk" -s 8 -c 7 -z 4096 -d c >/dev/null
head -c 4096 /dev/zero | cmp - c || fail "dsm deallocates"
nvme set-feature /dev/nvme0 -f 4 --value=350 >/dev/null
has '0x0*15e' nvme get-feature /dev/nvme0 -f 4
has 'alue' nvme get-feature /dev/nvme0 -f 7
has 'Compare Failure|COMPARE_FAILED|0x0?285' nvme error-log /dev/nvme0 -e 8
nvme ns-rescan /dev/nvme0
nvme reset /dev/nvme0
for _ in {1..100}; do [ "$(cat /sys/class/nvme/nvme0/state)" = live ] && break; sleep 0.1; done
[ "$(cat /sys/class/nvme/nvme0/state)" = live ] || fail "alive after a reset"
nvme write "$disk" -s 8 -c 7 -z 4096 -d b >/dev/null
nvme compare "$disk" -s 8 -c 7 -z 4096 -d b >/dev/null
fails nvme connect -t tcp -a 10.0.2.2 -s "$PORT" -n nqn.2026-01.test:none
disconnect
SCRIPT

cat >"$work/two" <<'SCRIPT'
echo "== two subsystems, and two ways to the first"
live() { for _ in {1..100}; do if [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = "$1" ]; then return 0; fi; sleep 0.1; done
    fail "$1 controllers are live: $(cat /sys/class/nvme/nvme*/state)"; }
connect
nvme connect -t tcp -a 10.0.2.2 -s "$PORT" -n "$NQN" --nr-io-queues=1 --duplicate-connect >/dev/null || fail "a second way"
nvme connect -t tcp -a 10.0.2.2 -s $((PORT + 1)) -n "$NQN-2" --nr-io-queues=1 >/dev/null || fail "a second subsystem"
live 3
for _ in {1..100}; do if [ "$(cat /sys/block/nvme*/uuid | sort -u | wc -l)" = 3 ]; then break; fi; sleep 0.1; done
[ "$(cat /sys/block/nvme*/uuid | sort -u | wc -l)" = 3 ] || fail "three disks: $(cat /sys/block/nvme*/uuid)"
! dmesg | grep -iE 'duplicate|does not support multiple' || fail "the kernel had nothing to complain about"
has 'disconnected 1' nvme disconnect -n "$NQN-2"
has 'disconnected 2' nvme disconnect -n "$NQN"
SCRIPT

cat >"$work/digests" <<'SCRIPT'
for digests in "" "--hdr-digest" "--data-digest" "--hdr-digest --data-digest"; do
    echo "== fio, digests: ${digests:-none}"
    connect $digests
    fio --eta=never --name=mixed --filename="$disk" --rw=randrw --bsrange=512-128k --bs_unaligned=0 --blockalign=512 --size=6m --iodepth=16 \
        --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --output=out || { cat out; fail "fio, $digests"; }
    grep -q 'err= 0' out || fail "fio: $(cat out)"
    fio --eta=never --name=large --filename=/dev/nvme0n2 --rw=write --bs=1m --size=16m --iodepth=4 --ioengine=libaio --direct=1 \
        --verify=crc32c --verify_fatal=1 --output=out || { cat out; fail "fio, large, $digests"; }
    grep -E 'READ|WRITE' out
    disconnect
done
! dmesg | grep -iE 'digest error|unexpected|protocol error' || fail "the kernel had nothing to complain about"
SCRIPT

cat >"$work/kill" <<'SCRIPT'
echo "== the target is killed in mid-write"
connect --hdr-digest --data-digest --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5
head -c 2097152 /dev/urandom >flushed
dd if=flushed of="$disk" bs=64k oflag=direct conv=fsync status=none
nvme write-uncor "$disk" -s 4000 -c 1 >/dev/null
fio --eta=never --name=through --filename="$disk" --offset=2m --rw=randwrite --bsrange=4k-64k --size=13m --iodepth=8 --ioengine=libaio \
    --direct=1 --fsync=16 --rate=3m --verify=crc32c --verify_fatal=1 --output=out & fio=$!
sleep 2
echo "please kill the target"
for _ in {1..100}; do [ "$(cat /sys/class/nvme/nvme0/state)" = live ] || break; sleep 0.1; done
[ "$(cat /sys/class/nvme/nvme0/state)" != live ] || fail "the kernel noticed"
kill -0 $fio || fail "fio goes on"
echo "please start the target"
wait $fio || { cat out; fail "fio, through a restart"; }
grep -q 'err= 0' out || fail "fio: $(cat out)"
dd if="$disk" bs=64k count=32 iflag=direct status=none | cmp - flushed || fail "what was flushed is there"
! nvme read "$disk" -s 4001 -c 0 -z 4096 -d c >/dev/null 2>err || fail "what is not to be read was"
grep -qiE 'unrecovered read|0x4?281' err || { cat err; fail "a media error"; }
nvme write-zeroes "$disk" -s 4000 -c 1 >/dev/null
nvme flush "$disk" >/dev/null
dd if="$disk" bs=64k iflag=direct status=none | sha256sum | sed 's/^/holds /'
disconnect
SCRIPT

if [ "$part" = all ] || [ "$part" = cli ] || [ "$part" = digests ]; then
    serve --block-size 512 --memory 64MiB --memory 64MiB --request 256KiB --data-pdu 64KiB
    "$target" --listen "127.0.0.1:$((port + 1))" --nqn "$nqn-2" --block-size 512 --memory 64MiB >"$work/log2" 2>&1 & second=$!
    : >"$work/both"
    [ "$part" = digests ] || cat "$work/cli" "$work/two" >>"$work/both"
    [ "$part" = cli ] || cat "$work/digests" >>"$work/both"
    guest "$work/both"
    stop
fi
if [ "$part" = all ] || [ "$part" = kill ]; then
    truncate -s 16M "$work/disk"
    again=(--file "$work/disk")
    serve "${again[@]}"
    guest "$work/kill"
    hash=$(sed -n 's/^holds \([0-9a-f]*\).*/\1/p' "$work/output")
    [ -n "$hash" ] || { echo "NOT SO: the guest told what it reads"; exit 1; }
    [ "$(sha256sum <"$work/disk")" = "$hash  -" ] || { echo "NOT SO: the file holds what the guest reads"; exit 1; }
    [ ! -e "$work/disk.uncorrectable" ] || { echo "NOT SO: nothing is marked any more"; exit 1; }
    stop
fi
if [ "$part" = all ] || [ "$part" = nic ]; then
    echo "the target on an emulated host, over a wire that loses and reorders"
    own=10.77.0.2 at=10.77.0.1
    netdev=dgram,id=n0,local.type=unix,local.path=$work/guest,remote.type=unix,remote.path=$work/port
    serve_at --listen "0.0.0.0:$port" --dgram "$work/port" "$work/guest" --loss 0.002 --reorder 0.002 \
        --block-size 512 --memory 64MiB --memory 64MiB --request 256KiB --data-pdu 64KiB
    guest "$work/digests"
    kill "$pid"
    wait "$pid" || { cat "$work/log"; echo "NOT SO: the target ends well"; exit 1; }
    pid=
    counted() { awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }' "$work/log"; }
    for counter in wire_lost tx_nvmeotcp_digests; do
        [ "$(counted "$counter")" -gt 0 ] || { cat "$work/log"; echo "NOT SO: $counter moved"; exit 1; }
    done
fi
echo "done"
