#!/usr/bin/env python3
"""PDUs of PDCP out of a capture of GTP-U, as datagrams that tshark's dissector of PDCP takes: each says which bearer it is of.

    pdcp_frames.py CAPTURE KEYS OUT      KEYS: as `pdcp --keys` writes them; OUT: a capture (pcap)

Prints tshark's options, one a line: the keys of all bearers, each a user of its own. A bearer's keys differ by direction, and tshark's do not: so
each direction is a user.
"""

import struct
import subprocess
import sys

capture, keys, out = sys.argv[1:]
bearers = {}
for user, line in enumerate(open(keys, encoding="ascii"), 1):
    tunnel, direction, bearer, bits, algorithm, cipher, integrity = line.split()
    bearers[int(tunnel)] = (user, direction == "downlink", int(bearer), int(bits), integrity != "-")
    none = "0" * 32
    secret = [none, cipher if cipher != "-" else none, none, integrity if integrity != "-" else none]
    print("uat:pdcp_nr_ue_keys:" + ",".join(f'"{value}"' for value in [user, *secret]))

fields = ["-e", "gtp.message", "-e", "gtp.teid", "-e", "udp.payload"]
read = subprocess.run(["tshark", "-r", capture, "-Y", "gtp", "-T", "fields", *fields], capture_output=True, text=True, check=True)
with open(out, "wb") as file:
    # Link type 228: IPv4 without a link-layer header.
    file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 228))
    for number, line in enumerate(read.stdout.splitlines()):
        message, tunnel, payload = line.split("\t")
        if int(message, 0) != 255:
            continue
        user, downlink, bearer, bits, has_mac = bearers[int(tunnel, 0)]
        # User plane; sequence numbers, direction, bearer (of kind DCCH), user; MAC-I; the PDU.
        frame = b"pdcp-nr" + bytes([2, 2, bits, 3, downlink, 4, 1, 5, bearer, 6]) + struct.pack("!H", user)
        frame += (b"\x0f" if has_mac else b"") + b"\x01" + bytes.fromhex(payload.replace(":", ""))[8:]
        udp = struct.pack("!HHHH", 40000, 40000, 8 + len(frame), 0) + frame
        ip = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, 0x0A000001, 0x0A000002)
        file.write(struct.pack("<IIII", number, 0, len(ip) + len(udp), len(ip) + len(udp)) + ip + udp)
