"""Runs in the guest: writes to a disk of nvme_target whose file is on a device that logs writes (dm-log-writes), then looks at
the device as it was after each flush in the log, as a machine would find it that lost power there.

  crashes.py work   writes, flushes, and marks the log behind each flush that was answered
  crashes.py check  replays the log; exits with 1 and a sentence if something that was flushed is not there
"""
import json
import os
import struct
import subprocess
import sys

DISK, LOGGED, LOG, RAM, REPLAYED, MODEL = "/dev/nvme0n1", "/dev/mapper/logged", "/dev/vdb", "/dev/ram0", "/replayed", "/tmp/model"
BLOCK, BLOCKS = 512, 2048
STEPS = 12
# Linux, drivers/md/dm-log-writes.c: flags of an entry, and the magic of the first sector.
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
MAGIC = 0x6A736677736872


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"NOT SO: {' '.join(command)}: {done.stdout.decode()}")


def content(step, lba):
    return struct.pack("<II", step, lba) * (BLOCK // 8)


def work():
    """Each step changes runs of eight blocks, flushes, and marks the log. The model: what each block holds, by step."""
    steps = []
    for step in range(1, STEPS + 1):
        changes = {}

        def write(lba):
            with open("/tmp/data", "wb") as file:
                file.write(b"".join(content(step, lba + i) for i in range(8)))
            run("nvme", "write", DISK, "-s", str(lba), "-c", "7", "-z", str(8 * BLOCK), "-d", "/tmp/data")
            changes.update({str(lba + i): step for i in range(8)})

        def spoil(lba):
            run("nvme", "write-uncor", DISK, "-s", str(lba), "-c", "7")
            changes.update({str(lba + i): "unreadable" for i in range(8)})

        place = 64 * (step % 6)
        if step % 3 == 1:
            write(place)
            spoil(place + 8)
        elif step % 3 == 2:
            write(64 * ((step - 1) % 6) + 8)  # heals the blocks spoiled by the last step
            write(place)
        else:
            run("nvme", "write-zeroes", DISK, "-s", str(place), "-c", "7")
            changes.update({str(place + i): 0 for i in range(8)})
            write(place + 16)
        run("nvme", "flush", DISK)
        run("dmsetup", "message", "logged", "0", "mark", f"step-{step}")
        steps.append(changes)
    with open(MODEL, "w") as file:
        json.dump(steps, file)


def entries():
    log = open(LOG, "rb", buffering=1 << 20)
    magic, _version, count, sector_size = struct.unpack("<QQQI", log.read(28))
    if magic != MAGIC:
        sys.exit("NOT SO: the log has its magic")
    log.seek(sector_size)
    for _ in range(count):
        head = log.read(sector_size)
        sector, sectors, flags, length = struct.unpack("<QQQQ", head[:32])
        name = head[32 : 32 + length].decode() if flags & MARK else ""
        data = b"" if flags & (MARK | DISCARD) else log.read(sectors * sector_size)
        yield sector * sector_size, sectors * sector_size, flags, name, data


def look(image):
    """What the disk's file and its list of unreadable bytes hold, after the file system has mended itself."""
    device = os.open(RAM, os.O_WRONLY)
    os.pwrite(device, image, 0)
    os.fsync(device)
    os.close(device)
    run("mount", "-t", "ext4", RAM, REPLAYED)
    with open(f"{REPLAYED}/disk", "rb") as file:
        held = file.read()
    marked = set()
    try:
        with open(f"{REPLAYED}/disk.uncorrectable") as file:
            lines = file.read().splitlines()
        if lines[-1] != "end":
            sys.exit("NOT SO: the list of unreadable bytes is whole")
        for line in lines[1:-1]:
            if line[0].isdigit():
                start, end = map(int, line.split())
                marked.update(range(start // BLOCK, end // BLOCK))
    except FileNotFoundError:
        pass
    run("umount", REPLAYED)
    return held, marked


def check():
    with open(MODEL) as file:
        steps = json.load(file)
    image, state, done, looked = bytearray(os.stat("/replayed-size").st_size), {}, 0, 0
    begun = False
    for at, length, flags, name, data in entries():
        if flags & DISCARD:
            image[at : at + length] = bytes(length)
        else:
            image[at : at + len(data)] = data
        if name == "begin":
            begun = True
        elif name.startswith("step-"):
            state.update(steps[done])
            done += 1
        if not begun or not flags & (FLUSH | FUA | MARK):
            continue
        held, marked = look(image)
        looked += 1
        # Behind a mark the data is exact; before it, changes of the step may or may not be there.
        coming = {} if flags & MARK or done == len(steps) else steps[done]
        where = f"{looked}. look, behind step {done}"
        for lba in range(BLOCKS):
            known, next_ = state.get(str(lba), 0), coming.get(str(lba))
            may = [known] if next_ is None else [known, next_]
            if lba in marked:
                if "unreadable" not in may:
                    sys.exit(f"NOT SO: {where}: block {lba} is readable")
            else:
                block = held[lba * BLOCK : (lba + 1) * BLOCK]
                blocks = [bytes(BLOCK) if m == 0 else content(m, lba) for m in may if m != "unreadable"]
                if block not in blocks:
                    sys.exit(f"NOT SO: {where}: block {lba} holds one of {may}: {block[:8].hex()}")
    if done != STEPS:
        sys.exit(f"NOT SO: the log has {STEPS} marks; it has {done}")
    print(f"{looked} times without power, {done} flushes answered: all that was flushed was there")


{"work": work, "check": check}[sys.argv[1]]()
