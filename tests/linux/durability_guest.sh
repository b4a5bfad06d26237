#!/usr/bin/env bash
# Tests power cuts in a QEMU guest: nvme_target serves a file on ext4, on a device that logs every write and flush
# (dm-log-writes); the guest's kernel is the NVMe host. Then the device is rebuilt as of every flush in the log, and the
# file and its list of unreadable bytes are compared with the target's acknowledgments. Needs no root.
#   tests/linux/durability_guest.sh
# Environment: NVME_TARGET, the program (target/release/nvme_target by default).
. "$(dirname "$0")/guest/lib.sh"
target=$(realpath -e "${NVME_TARGET:-target/release/nvme_target}")

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
nqn=nqn.2026-01.test:disk
fail() { echo "NOT SO: $*"; dmesg | tail -20; exit 1; }
modprobe -a dm-log-writes nvme-tcp
modprobe -q ext4 || true
modprobe brd rd_nr=1 rd_size=$((16 * 1024))
mkdir -p /mnt /replayed /etc/nvme
cp /guest/crashes.py /tmp/
for options in "" "--direct"; do
    echo "== a file ${options:-through the page cache}"
    dmsetup create logged --table "0 $(blockdev --getsz /dev/vda) log-writes /dev/vda /dev/vdb" || fail "dm-log-writes"
    dmsetup mknodes
    mke2fs -q -F -t ext4 -b 4096 -J size=4 /dev/mapper/logged
    truncate -s "$(blockdev --getsize64 /dev/vda)" /replayed-size
    mount -t ext4 /dev/mapper/logged /mnt
    dd if=/dev/zero of=/mnt/disk bs=1M count=1 conv=fsync status=none
    sync
    /guest/nvme_target --listen 127.0.0.1:4420 --nqn $nqn --block-size 512 --file /mnt/disk $options >/tmp/log 2>&1 & pid=$!
    for _ in {1..200}; do grep -q '^ready' /tmp/log && break; kill -0 $pid || { cat /tmp/log; fail "the target starts"; }; sleep 0.1; done
    sync
    dmsetup message logged 0 mark begin
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n $nqn --nr-io-queues=1 >/dev/null || fail "connect"
    for _ in {1..100}; do [ ! -b /dev/nvme0n1 ] || break; sleep 0.1; done
    python3 /tmp/crashes.py work || fail "the work"
    nvme disconnect -n $nqn >/dev/null
    kill $pid
    wait $pid || true
    umount /mnt
    dmsetup remove logged
    python3 /tmp/crashes.py check || fail "what was flushed is there"
done
SCRIPT
truncate -s 16M "$work/data"
truncate -s 1G "$work/log"
disk() { printf -- '-drive file=%s,format=raw,if=none,id=%s,cache=unsafe -device virtio-blk-pci,drive=%s' "$work/$1" "$1" "$1"; }
# shellcheck disable=SC2046
"$here/guest/boot.sh" -t 600 -f "$target" -f "$here/guest/crashes.py" "$work/script" $(disk data) $(disk log) || status=$?
[ "$status" = 0 ] || exit "$status"
echo "done"
