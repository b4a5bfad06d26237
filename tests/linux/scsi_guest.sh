#!/usr/bin/env bash
# Tests SCSI protection information in a QEMU guest: `transform` makes the same information as Linux's block layer for a
# disk of scsi_debug (dif=1 dix=1), and verifies it; Linux and `transform` find a flipped bit at its LBA. Needs no root.
#   tests/linux/scsi_guest.sh
# Environment: TRANSFORM, the program (target/release/transform by default).
. "$(dirname "$0")/guest/lib.sh"
transform=$(realpath -e "${TRANSFORM:-target/release/transform}")
fail() { echo "NOT SO: $*"; exit 1; }
skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
. "$here/flips.sh"
command -v python3 >/dev/null || skip "python3 is missing"

count=1024 drives=()
head -c $((count * 4096)) /dev/urandom >"$work/plain"
drive() { drives+=(-drive "file=$work/$1,format=raw,if=none,id=$1,cache=unsafe" -device "virtio-blk-pci,drive=$1,serial=$1"); }
drive plain
for block in 512 4096; do
    truncate -s $((count * 8)) "$work/tags$block"
    drive "tags$block"
done

# Programs cannot read the disk's protection information from the disk: it is in the guest kernel's memory and is read
# there. A command without protection information flips a bit of the data.
cat >"$work/disk.py" <<'PYTHON'
import array, fcntl, os, struct, sys

def kernel(start, length):
    core = open("/proc/kcore", "rb")
    header = core.read(64)
    (headers,), (size, number) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
    for at in range(number):
        core.seek(headers + at * size)
        kind, _, offset, address, _, in_file, _, _ = struct.unpack("<IIQQQQQQ", core.read(56))
        if kind == 1 and address <= start and start + length <= address + in_file:
            core.seek(offset + start - address)
            return core.read(length)
    sys.exit("this memory is not shown")

def tags(length, target):
    """What was allocated for them, by its length, and by the first reference tags: something else of scsi_debug may be as long."""
    wanted = [number.to_bytes(4, "big") for number in range(64)]
    for line in open("/proc/vmallocinfo"):
        words = line.split()
        start, end = (int(word, 16) for word in words[0].split("-"))
        # An area ends with a guard page.
        if "[scsi_debug]" in line and length <= end - start - 4096 < length + 4096:
            area = kernel(start, length)
            if [area[8 * n + 4:8 * n + 8] for n in range(64)] == wanted:
                open(target, "wb").write(area)
                return
    sys.exit("scsi_debug has no such area")

def write(disk, lba, data):
    command = array.array("B", struct.pack(">BBIBHB", 0x2A, 0, lba, 0, 1, 0))
    data, sense = array.array("B", data), array.array("B", bytes(64))
    where = lambda area: area.buffer_info()[0]
    io = array.array("B", struct.pack("@iiBBHIPPPIIiPBBBBHHiII", ord("S"), -2, len(command), len(sense), 0, len(data),
        where(data), where(command), where(sense), 10000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    fcntl.ioctl(os.open(disk, os.O_RDWR), 0x2285, io, True)

if sys.argv[1] == "tags":
    tags(int(sys.argv[2]), sys.argv[3])
else:
    disk, lba, block = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    source = open("/dev/vda", "rb")
    source.seek(lba * block)
    data = bytearray(source.read(block))
    data[100] ^= 16
    write(disk, lba, data)
PYTHON

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
fail() { echo "NOT SO: $*"; dmesg | tail -20; exit 1; }
modprobe sd_mod
echo 1 >/proc/sys/kernel/kptr_restrict # root sees where things are
by_serial() { for block in /sys/block/vd*; do [ "$(cat "$block/serial")" != "$1" ] || echo "/dev/${block##*/}"; done; }
for block in 512 4096; do
    modprobe scsi_debug dif=1 dix=1 guard=0 sector_size=$block dev_size_mb=16 delay=0
    for _ in {1..100}; do [ -e /sys/block/sda/integrity/format ] && break; sleep 0.1; done
    disk=/dev/sda format=$(cat /sys/block/sda/integrity/format) blocks=$(($(cat /sys/block/sda/size) * 512 / block))
    [ "$format" = T10-DIF-TYPE1-CRC ] || fail "Linux protects the disk: $format"
    dd if="$(by_serial plain)" of="$disk" bs=64k count=$((1024 * block / 65536)) oflag=direct status=none || fail "it is written"
    cmp -n $((1024 * block)) "$(by_serial plain)" <(dd if="$disk" bs=64k iflag=direct status=none) || fail "it is read, and verified"
    python3 /guest/disk.py tags $((blocks * 8)) /tmp/tags || fail "protection information is found"
    dd if=/tmp/tags of="$(by_serial tags$block)" bs=8192 count=1 status=none
    dmesg -c >/dev/null
    python3 /guest/disk.py flip "$disk" 77 "$block"
    one() { dd if="$disk" of=/dev/null bs="$block" skip="$1" count=1 iflag=direct status=none 2>/dev/null; }
    one 76 && one 78 || fail "its neighbours are read"
    ! one 77 || fail "the block with the flipped bit is not"
    dmesg | grep -i "guard" >/dev/null || fail "it is the guard"
    dmesg | grep "sector $((77 * block / 512)) " >/dev/null || fail "of that block"
    rmmod scsi_debug
    echo "Linux and scsi_debug, blocks of $block bytes: written, read, a flipped bit found"
done
SCRIPT
"$here/guest/boot.sh" -t 300 -f "$work/disk.py" "$work/script" "${drives[@]}" || status=$?
[ "$status" = 0 ] || exit "$status"
for block in 512 4096; do
    head -c $((count * block)) "$work/plain" >"$work/data"
    python3 - "$work/data" "$work/tags$block" $block >"$work/theirs" <<'PYTHON'
import sys
data, tags, block = open(sys.argv[1], "rb").read(), open(sys.argv[2], "rb").read(), int(sys.argv[3])
for n in range(len(data) // block):
    sys.stdout.buffer.write(data[n * block:(n + 1) * block] + tags[n * 8:(n + 1) * 8])
PYTHON
    "$transform" "$work/data" "$work/ours" --transform pi --unit $block
    cmp "$work/ours" "$work/theirs" || fail "both protect alike, so each reads what the other protected: blocks of $block bytes"
    "$transform" "$work/theirs" "$work/back" --undo --transform pi --unit $block || fail "what Linux protected is verified"
    cmp "$work/data" "$work/back" || fail "and is what it wrote"
    finds_flips "$work/theirs" $block
done
echo "and we verify what Linux wrote, and find a flipped bit at its LBA"
