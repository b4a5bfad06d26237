#!/usr/bin/env bash
# Tests protection information of type 1 in a QEMU guest: `transform` verifies data that Linux wrote to QEMU's NVMe
# drive with pi=1, and Linux reads data that `transform` made; either finds a flipped bit at its LBA. Needs no root.
#   tests/linux/pi_guest.sh
# Environment: TRANSFORM, the program (target/release/transform by default).
. "$(dirname "$0")/guest/lib.sh"
transform=$(realpath -e "${TRANSFORM:-target/release/transform}")
fail() { echo "NOT SO: $*"; exit 1; }
skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
command -v python3 >/dev/null || skip "python3 is missing"

# A drive stores all blocks, then all metadata; `transform` stores the metadata after each block.
cat >"$work/layout.py" <<'PYTHON'
import sys
way, block, source, target = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
data = open(source, "rb").read()
count = len(data) // (block + 8)
if way == "to-drive":
    blocks = [data[n * (block + 8):(n + 1) * (block + 8)] for n in range(count)]
    out = b"".join(b[:block] for b in blocks) + b"".join(b[block:] for b in blocks)
else:
    tags = data[count * block:]
    out = b"".join(data[n * block:(n + 1) * block] + tags[n * 8:(n + 1) * 8] for n in range(count))
open(target, "wb").write(out)
PYTHON
. "$here/flips.sh"

count=1024 drives=() number=0
namespace() { # the image, its block size
    number=$((number + 1))
    drives+=(-drive "file=$work/$1,format=raw,if=none,id=$1,cache=unsafe" -device "nvme,serial=$1,id=c$number")
    drives+=(-device "nvme-ns,drive=$1,bus=c$number,ms=8,mset=0,pi=1,logical_block_size=$2,physical_block_size=$2")
}
head -c $((count * 4096)) /dev/urandom >"$work/plain"
for block in 512 4096; do
    head -c $((count * block)) "$work/plain" >"$work/plain$block"
    truncate -s $((count * (block + 8))) "$work/theirs$block"
    "$transform" "$work/plain$block" "$work/protected" --transform pi --unit $block
    python3 "$work/layout.py" to-drive $block "$work/protected" "$work/ours$block"
    cp "$work/ours$block" "$work/flipped$block"
    flip "$work/flipped$block" $((77 * block + 100))
    for image in theirs ours flipped; do namespace "$image$block" $block; done
done
drives+=(-drive "file=$work/plain,format=raw,if=none,id=plain,cache=unsafe" -device "virtio-blk-pci,drive=plain")

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
fail() { echo "NOT SO: $*"; dmesg | tail -20; exit 1; }
modprobe -q nvme || true
by_serial() { for controller in /sys/class/nvme/nvme*; do
    [ "$(tr -d ' ' <"$controller/serial")" != "$1" ] || echo "/dev/${controller##*/}n1"
done; }
for _ in {1..100}; do [ -b "$(by_serial flipped4096)" ] && break; sleep 0.1; done
for block in 512 4096; do
    disk=$(by_serial theirs$block)
    format=$(cat "/sys/block/${disk##*/}/integrity/format")
    [ "$format" = T10-DIF-TYPE1-CRC ] || fail "Linux protects the drive: $format"
    dd if=/dev/vda of="$disk" bs=64k count=$((1024 * block / 65536)) oflag=direct status=none || fail "it is written"
    cmp -n $((1024 * block)) /dev/vda <(dd if="$(by_serial ours$block)" bs=64k iflag=direct status=none) || fail "what we protected is read"
    one() { dd if="$(by_serial flipped$block)" of=/dev/null bs=$block skip="$1" count=1 iflag=direct status=none 2>/dev/null; }
    one 76 && one 78 || fail "its neighbours are read"
    ! one 77 || fail "the block with the flipped bit is not"
    # Status code type 2, 82h: the guard.
    dmesg | grep "LBA 77, .*sct 0x2 / sc 0x82" >/dev/null || fail "the drive says that it is the guard"
    dmesg -c >/dev/null
    echo "Linux and QEMU's drive, blocks of $block bytes: written, read, a flipped bit found"
done
SCRIPT
"$here/guest/boot.sh" -t 300 "$work/script" "${drives[@]}" || status=$?
[ "$status" = 0 ] || exit "$status"
for block in 512 4096; do
    python3 "$work/layout.py" from-drive $block "$work/theirs$block" "$work/protected"
    "$transform" "$work/protected" "$work/back" --undo --transform pi --unit $block || fail "what Linux wrote is verified"
    cmp "$work/plain$block" "$work/back" || fail "and is what it wrote"
    finds_flips "$work/protected" $block
done
echo "and we verify what Linux wrote, and find a flipped bit at its LBA"
