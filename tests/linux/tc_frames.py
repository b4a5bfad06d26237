"""In the guest: gives rules and frames to the kernel's tc, and compares what comes out with what the switch made of them.

Cases are as crates/nic-switch/examples/tc_cases.rs writes them. Devices are pairs, and what leaves by the one that rules name
arrives at the other: pf0vf0 and f0, p0 and w0, m0 and n0 (what no rule takes).

Fields in which kernels differ from each other or from hardware by design, and which are not compared:
- the identification of an outer IPv4 header, which Linux draws, and the header's checksum, which is checked and then left out.
"""
import select, socket, struct, subprocess, sys, time

MARK = bytes([0xA5, 0x5A, 0xC3, 0x3C])
PORTS = {"p0": "w0", "pf0vf0": "f0", "pf0vf1": "f1", "pf0vf2": "f2", "miss0": "n0", "miss1": "n1", "miss2": "n2"}
RULED = ["p0", "pf0vf0", "pf0vf1", "pf0vf2", "vxlan0", "gretap1"]
SOL_PACKET, PACKET_AUXDATA, PACKET_OUTGOING = 263, 8, 4
TAG_IS_THERE, TAG_HAS_TYPE = 0x10, 0x40


def attach(device):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    one.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    one.bind((device, 3))
    one.setblocking(False)
    return one


def received(one):
    """The frames that have arrived, with their outermost tag, which the kernel keeps beside them."""
    while True:
        try:
            frame, control, _, (_, _, kind, _, _) = one.recvmsg(65536, 256)
        except BlockingIOError:
            return
        if kind == PACKET_OUTGOING or MARK not in frame:
            continue
        for level, what, data in control:
            if level == SOL_PACKET and what == PACKET_AUXDATA:
                status, _, _, _, _, control_information, ether_type = struct.unpack("=IIIHHHH", data[:20])
                if status & TAG_IS_THERE:
                    if not status & TAG_HAS_TYPE:
                        ether_type = 0x8100
                    frame = frame[:12] + struct.pack("!HH", ether_type, control_information) + frame[12:]
        yield frame


def is_right(header):
    total = sum(struct.unpack("!%dH" % (len(header) // 2), header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def comparable(port, frame):
    """The frame without the fields that are not compared."""
    is_outer = port == "p0" and frame[12:14] == b"\x08\x00" and frame[26:34] == bytes([192, 0, 2, 1, 192, 0, 2, 2])
    if is_outer and is_right(frame[14:34]):
        frame = frame[:18] + b"\0\0" + frame[20:24] + b"\0\0" + frame[26:]
    return port, frame


def sets(lines):
    one = None
    for line in lines:
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "S":
            if one:
                yield one
            one = {"number": rest, "rules": [], "steps": []}
        elif kind == "R":
            one["rules"].append(rest)
        elif kind in "FO":
            port, frame = rest.split()
            one["steps"].append((kind, port, bytes.fromhex(frame)))
    if one:
        yield one


def run(one, sockets):
    batch = ["filter del dev %s ingress chain %d" % (device, chain) for device in RULED for chain in (2, 1, 0)]
    for number in range(3):
        way = "action mirred egress redirect dev m%d" % number
        for chain in range(3):
            batch.append("filter add dev pf0vf%d ingress protocol all prio 60000 chain %d flower %s" % (number, chain, way))
    made = subprocess.run(["tc", "-batch", "-"], input="\n".join(batch + one["rules"]) + "\n", text=True, capture_output=True)
    if made.returncode != 0:
        raise SystemExit("set %s: tc refuses:\n%s\n%s" % (one["number"], made.stderr, "\n".join(one["rules"])))
    expected = [comparable(port, frame) for kind, port, frame in one["steps"] if kind == "O"]
    for kind, port, frame in one["steps"]:
        if kind == "F":
            sockets[port].send(frame)
    arrived, until = [], time.monotonic() + 1
    while True:
        for port, socket_of_port in sockets.items():
            arrived += [comparable(port, frame) for frame in received(socket_of_port)]
        # Surplus frames arrive together with the rest, because frames are delivered at once.
        if len(arrived) >= len(expected) or time.monotonic() > until:
            break
        select.select(list(sockets.values()), [], [], 0.05)
    missing, surplus = list(expected), []
    for way in arrived:
        if way in missing:
            missing.remove(way)
        else:
            surplus.append(way)
    if missing or surplus:
        print("set %s: the kernel does otherwise" % one["number"])
        for rule in one["rules"]:
            print("  tc", rule)
        for what, ways in (("the switch only", missing), ("the kernel only", surplus)):
            for port, frame in ways:
                at = frame.index(MARK) + 4
                print("  %s: %s %s" % (what, port, frame.hex()))
                sent = [step for step in one["steps"] if step[0] == "F" and frame[at : at + 3] in step[2]]
                for _, from_port, came in sent:
                    print("    from: %s %s" % (from_port, came.hex()))
    return len(one["steps"]) - len(expected), len(expected), bool(missing or surplus)


def main():
    sockets = {port: attach(device) for port, device in PORTS.items()}
    frames = out = different = count = 0
    began = time.monotonic()
    with open(sys.argv[1]) as lines:
        for one in sets(lines):
            sent, came, differs = run(one, sockets)
            frames, out, different, count = frames + sent, out + came, different + differs, count + 1
            if different >= 12:
                break
    took = time.monotonic() - began
    print("tc: %d sets of rules, %d frames in, %d out, %d sets different, %.1f s" % (count, frames, out, different, took))
    sys.exit(1 if different or not count else 0)


main()
