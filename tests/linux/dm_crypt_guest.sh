#!/usr/bin/env bash
# Tests volumes under AES-XTS with dm-crypt in a QEMU guest: each side reads the other's volumes, with sectors of 512
# and 4096 bytes, keys of 128 and 256 bits, and both ways to count tweaks. Needs no root.
#   tests/linux/dm_crypt_guest.sh
# Environment: TRANSFORM, the program (target/release/transform by default).
. "$(dirname "$0")/guest/lib.sh"
transform=$(realpath -e "${TRANSFORM:-target/release/transform}")
fail() { echo "NOT SO: $*"; exit 1; }

megabytes=4
head -c $((megabytes << 20)) /dev/urandom >"$work/plain"
head -c $((megabytes << 20)) /dev/urandom >"$work/theirs"
# Bytes of a key, bytes of a sector, counting of tweaks here, and dm-crypt's name for it.
cases=("64 512 sectors512 -" "32 512 units -" "64 4096 sectors512 sector_size:4096" "64 4096 units sector_size:4096,iv_large_sectors"
    "32 4096 units sector_size:4096,iv_large_sectors")
disks=()
disk() { disks+=(-drive "file=$work/$1,format=raw,if=none,id=$1,cache=unsafe" -device "virtio-blk-pci,drive=$1,serial=$1"); }
: >"$work/list"
for number in "${!cases[@]}"; do
    read -r bytes unit tweak options <<<"${cases[$number]}"
    head -c "$bytes" /dev/urandom >"$work/key$number"
    "$transform" "$work/plain" "$work/ours$number" --transform xts --key "$work/key$number" --unit "$unit" --tweak "$tweak"
    ! cmp -s "$work/plain" "$work/ours$number" || fail "it is encrypted"
    truncate -s "${megabytes}M" "$work/image$number"
    echo "$number $(od -An -v -tx1 "$work/key$number" | tr -d ' \n') $options" >>"$work/list"
    disk "ours$number"
    disk "image$number"
done
disk theirs

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
fail() { echo "NOT SO: $*"; dmesg | tail -20; exit 1; }
modprobe -a dm-crypt
by_serial() { for block in /sys/block/vd*; do [ "$(cat "$block/serial")" != "$1" ] || echo "/dev/${block##*/}"; done; }
opened() { # the disk, its key, options
    local disk sectors options=${3//,/ } count=0
    disk=$(by_serial "$1") sectors=$(blockdev --getsz "$disk")
    [ "$options" != - ] || options=
    for _ in $options; do count=$((count + 1)); done
    dmsetup create plain --table "0 $sectors crypt aes-xts-plain64 $2 0 $disk 0${options:+ $count $options}" || fail "dm-crypt opens $1"
    dmsetup mknodes
}
theirs=$(by_serial theirs)
while read -r number key options; do
    opened "ours$number" "$key" "$options"
    [ "$(sha256sum </dev/mapper/plain)" = "$PLAIN" ] || fail "dm-crypt reads what we encrypted: $options"
    dmsetup remove plain
    opened "image$number" "$key" "$options"
    dd if="$theirs" of=/dev/mapper/plain bs=64k oflag=direct status=none
    sync
    dmsetup remove plain
    echo "dm-crypt, a key of $((4 * ${#key})) bits, ${options/#-/sectors of 512 bytes}: read and written"
done </guest/list
SCRIPT
"$here/guest/boot.sh" -t 300 -f "$work/list" -e "PLAIN=$(sha256sum <"$work/plain")" "$work/script" "${disks[@]}" || status=$?
[ "$status" = 0 ] || exit "$status"
for number in "${!cases[@]}"; do
    read -r _ unit tweak _ <<<"${cases[$number]}"
    "$transform" "$work/image$number" "$work/back" --undo --transform xts --key "$work/key$number" --unit "$unit" --tweak "$tweak"
    cmp "$work/theirs" "$work/back" || fail "we read what dm-crypt wrote: ${cases[$number]}"
done
echo "and we read what it wrote"
