"""A file system of one file, `disk`, that fails some of its writes for a moment. A loop device on it reports these failures as I/O errors of a disk.

usage: failing_disk.py MOUNT-POINT IMAGE FLAG FROM COUNT
While the file FLAG exists, writes at byte FROM or behind it fail with EIO; after COUNT of them FLAG is removed. It speaks to the kernel by
/dev/fuse (include/uapi/linux/fuse.h), needs root, and ends when it is unmounted.
"""
import ctypes, errno, os, struct, sys

mount_point, image, flag, first, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
disk = os.open(image, os.O_RDWR)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"failing_disk", mount_point.encode(), b"fuse", 0, options):
    sys.exit(f"{mount_point}: {os.strerror(ctypes.get_errno())}")
print("mounted", flush=True)

INIT, LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 26, 1, 2, 3, 4, 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, OPENDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 17, 18, 20, 25, 27, 29, 34, 36, 42
ROOT, DISK = 1, 2
MOST = 128 << 10


def attributes(node):
    if node == ROOT:
        mode, links, size = 0o40700, 2, 0
    else:
        mode, links, size = 0o100600, 1, os.fstat(disk).st_size
    return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)


def answer(opcode, node, body):
    if opcode == INIT:
        big_writes_and_max_pages = 1 << 5 | 1 << 22
        return struct.pack("<4I2H2I2H8I", 7, 31, MOST, big_writes_and_max_pages, 16, 12, MOST, 1, MOST >> 12, 0, *[0] * 8)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"disk":
            raise OSError(errno.ENOENT, "")
        return struct.pack("<4Q2I", DISK, 0, 1, 1, 0, 0) + attributes(DISK)
    if opcode in (GETATTR, SETATTR):
        return struct.pack("<Q2I", 1, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 1, 0, 0)
    if opcode == READ:
        _, offset, size = struct.unpack_from("<2QI", body)
        return os.pread(disk, size, offset)
    if opcode == WRITE:
        _, offset, size = struct.unpack_from("<2QI", body)
        fail(offset)
        return struct.pack("<2I", os.pwrite(disk, body[40 : 40 + size], offset), 0)
    if opcode == STATFS:
        return struct.pack("<5Q10I", 0, 0, 0, 0, 0, 4096, 255, 4096, *[0] * 7)
    if opcode in (RELEASE, FSYNC, FLUSH, RELEASEDIR, ACCESS):
        return b""
    raise OSError(errno.ENOSYS, "")


failed = 0


def fail(offset):
    global failed
    if offset >= first and failed < count and os.path.exists(flag):
        failed += 1
        print("failed a write", flush=True)
        if failed == count:
            os.unlink(flag)
        raise OSError(errno.EIO, "")


while True:
    try:
        request = os.read(fuse, MOST + 4096)
    except OSError as error:
        if error.errno == errno.ENODEV:
            break
        if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
            continue
        raise
    _, opcode, unique, node = struct.unpack_from("<2I2Q", request)
    if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
        continue
    try:
        text, error = answer(opcode, node, request[40:]), 0
    except OSError as failure:
        text, error = b"", -failure.errno
    os.write(fuse, struct.pack("<IiQ", 16 + len(text), error, unique) + text)
