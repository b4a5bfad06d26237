#!/usr/bin/env bash
# Tests a server's disk that fails some writes for a moment during a copy by several streams: after a successful copy
# the data is on the disk, read back after the file system was mounted again. Needs root, /dev/fuse and a loop device;
# otherwise exits with 77.
# usage: tests/reservoir/failed_writes.sh PATH-OF-reservoir [COPIES]
set -euo pipefail
reservoir="$1" copies="${2:-5}"
. "$(dirname "$0")/common.sh"
skip() { echo "SKIPPED: failed_writes.sh: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "it mounts, so it needs root"
[ -c /dev/fuse ] || skip "there is no /dev/fuse"
losetup -f >/dev/null 2>&1 || skip "there is no free loop device"
command -v mkfs.ext4 >/dev/null || skip "there is no mkfs.ext4"
loop="" failing=""
unmount() {
    umount "$work/root" 2>/dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
    loop=""
    # The loop device releases its file a moment later.
    for _ in $(seq 100); do
        umount "$work/fuse" 2>/dev/null && break
        mountpoint -q "$work/fuse" || break
        sleep 0.05
    done
    [ -z "$failing" ] || wait "$failing" 2>/dev/null || true
    failing=""
}
stop() {
    [ -z "$server" ] || { kill "$server"; wait "$server" || true; } 2>/dev/null
    server=""
}
trap 'stop; unmount; clean' EXIT
mkdir "$work/fuse"
head -c 200000000 /dev/urandom >"$work/from/file"
well=0
for number in $(seq "$copies"); do
    rm -f "$work/image"
    truncate -s 500M "$work/image"
    # Without a journal, a failed write does not stop the file system.
    mkfs.ext4 -q -F -O ^has_journal -E lazy_itable_init=0,nodiscard -m 0 "$work/image"
    tune2fs -e continue "$work/image" >/dev/null
    : >"$work/failing"
    python3 "$(dirname "$0")/failing_disk.py" "$work/fuse" "$work/image" "$work/flag" $((48 << 20)) 12 >"$work/failing" &
    failing=$!
    for _ in $(seq 100); do grep -q mounted "$work/failing" && break; kill -0 "$failing" 2>/dev/null || break; sleep 0.05; done
    grep -q mounted "$work/failing" || { failing=""; skip "the failing disk cannot be mounted"; }
    loop="$(losetup -f --show "$work/fuse/disk")" || skip "the loop device takes no such file"
    mount "$loop" "$work/root"
    served=--log start
    # Some blocks are stored before the failures begin.
    ( for _ in $(seq 400); do [ "$(grep -c ' PUT ' "$work/log")" -ge 2 ] && break; sleep 0.05; done; : >"$work/flag" ) &
    flagging=$!
    code=0
    timeout 300 "$reservoir" copy --cacert "$work/cert.pem" --rate 800M "$work/from/file" "$(url file)" >"$work/out" 2>&1 || code=$?
    wait "$flagging"
    rm -f "$work/flag"
    failed="$(grep -c failed "$work/failing" || true)"
    told="$(grep -c ' 500' "$work/log" || true)"
    stop
    : >"$work/log"
    sync
    umount "$work/root"
    mount "$loop" "$work/root"
    echo "copy $number: ended with $code; $failed writes failed, $told requests were answered 500"
    if [ "$code" = 0 ]; then
        same "$work/from/file" "$work/root/file"
        [ "$failed" = 0 ] || well=$((well + 1))
    else
        tail -1 "$work/out"
    fi
    unmount
done
[ "$well" -gt 0 ] || { echo "no copy went on after a failed write: nothing was tried"; exit 1; }
echo "$well copies went on after failed writes, and are on the disk"
