#!/usr/bin/env python3
"""Opens every QUIC packet of a capture, on several paths too, with the secrets inside it, and says how many there were.

    open_quic.py CAPTURE [CONNECTION-ID-BYTES]       pcapng with TLS secrets; connection IDs of 8 bytes by default

The nonce has the path ID (draft-ietf-quic-multipath-21 2.4): tshark does not know it. Which path and which direction a connection ID
is for is found by trying, once each. Exit status 1: a packet with a short header did not open.
"""

import struct
import sys
from collections import Counter

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

PATHS, UPDATES = 16, 2


def expand(secret, label, length):
    label = b"tls13 " + label
    info = struct.pack("!HB", length, len(label)) + label + b"\0"
    return HKDFExpand(hashes.SHA384() if len(secret) == 48 else hashes.SHA256(), length, info).derive(secret)


class Direction:
    """One end's keys, generation after generation."""

    def __init__(self, secret, chacha):
        self.chacha, self.bytes = chacha, 16 if len(secret) == 32 and not chacha else 32
        self.header, self.secrets, self.aeads, self.largest = expand(secret, b"quic hp", self.bytes), [secret], [], {}
        self.generation = {}

    def aead(self, generation):
        while len(self.aeads) <= generation:
            secret = self.secrets[-1]
            kind = ChaCha20Poly1305 if self.chacha else AESGCM
            self.aeads.append((kind(expand(secret, b"quic key", self.bytes)), expand(secret, b"quic iv", 12)))
            self.secrets.append(expand(secret, b"quic ku", len(secret)))
        return self.aeads[generation]

    def open(self, packet, at, path):
        """The packet number begins `at`; what it says, or None. RFC 9001 5.4, RFC 9000 A.3."""
        sample = packet[at + 4 : at + 20]
        if self.chacha:
            mask = Cipher(algorithms.ChaCha20(self.header, sample), None).encryptor().update(bytes(5))
        else:
            mask = Cipher(algorithms.AES(self.header), modes.ECB()).encryptor().update(sample)
        first = packet[0] ^ mask[0] & 0x1F
        length = (first & 3) + 1
        number = bytes(a ^ b for a, b in zip(packet[at : at + length], mask[1:]))
        header, window = bytes([first]) + packet[1:at] + number, 1 << 8 * length
        expected = self.largest.get(path, -1) + 1
        number = expected & -window | int.from_bytes(number, "big")
        if number + window // 2 <= expected:
            number += window
        elif number > expected + window // 2 and number >= window:
            number -= window
        now = self.generation.get(path, 0)
        for generation in range(max(now - 1, 0), now + 1 + UPDATES):
            if generation & 1 != first >> 2 & 1:
                continue
            aead, iv = self.aead(generation)
            nonce = int.from_bytes(iv, "big") ^ (path << 64 | number)
            try:
                data = aead.decrypt(nonce.to_bytes(12, "big"), packet[at + length :], header)
            except InvalidTag:
                continue
            self.largest[path] = max(self.largest.get(path, -1), number)
            self.generation[path] = max(now, generation)
            return data, generation
        return None


def blocks(data):
    """Captured packets, and secrets, of a pcapng file."""
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        body = data[at + 8 : at + length - 4]
        if kind == 6:
            yield "packet", body[20 : 20 + struct.unpack_from("<I", body, 12)[0]]
        elif kind == 10:
            yield "secrets", body[8 : 8 + struct.unpack_from("<I", body, 4)[0]].decode()
        at += length


def datagram(frame):
    """What UDP carries in an Ethernet frame."""
    kind, at = struct.unpack_from("!H", frame, 12)[0], 14
    if kind == 0x0800 and frame[at + 9] == 17:
        at += (frame[at] & 15) * 4
    elif kind == 0x86DD and frame[at + 6] == 17:
        at += 40
    else:
        return b""
    return frame[at + 8 : at + struct.unpack_from("!H", frame, at + 4)[0]]


def integer(packet, at):
    size = 1 << (packet[at] >> 6)
    return int.from_bytes(packet[at : at + size], "big") & (1 << 8 * size - 2) - 1, at + size


def short_headers(packet):
    """The packet with a short header at a datagram's end, behind those with long ones (RFC 9000 12.2)."""
    while packet and packet[0] & 0x80 and packet[1:5] == b"\0\0\0\1":
        at = 6 + packet[5]
        at += 1 + packet[at]
        if packet[0] & 0x30 == 0:
            token, at = integer(packet, at)
            at += token
        elif packet[0] & 0x30 == 0x30:
            return  # Retry has no length
        length, at = integer(packet, at)
        packet = packet[at + length :]
    if len(packet) > 25 and not packet[0] & 0x80:
        yield packet


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    cid_bytes = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    with open(sys.argv[1], "rb") as file:
        read = list(blocks(file.read()))
    lines = [line.split() for kind, text in read if kind == "secrets" for line in text.splitlines()]
    secrets = [bytes.fromhex(line[2]) for line in lines if line[0] in ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")]
    ends = [Direction(secret, chacha) for secret in secrets for chacha in ((False, True) if len(secret) == 32 else (False,))]
    known, opened, lost, generations = {}, Counter(), 0, Counter()
    for kind, frame in read:
        for packet in short_headers(datagram(frame)) if kind == "packet" else ():
            identifier = packet[1 : 1 + cid_bytes]
            tries = [known[identifier]] if identifier in known else [(end, path) for end in ends for path in range(PATHS)]
            for end, path in tries:
                done = end.open(packet, 1 + cid_bytes, path)
                if done:
                    known[identifier] = end, path
                    opened[path] += 1
                    generations[secrets.index(end.secrets[0]), path] = end.generation[path]
                    break
            else:
                lost += 1
    for path in sorted(opened):
        updates = max(count for (_, of), count in generations.items() if of == path)
        print(f"path {path}: {opened[path]} packets opened, {updates} key updates")
    print(f"{len(known)} connection IDs, {lost} packets not opened")
    sys.exit(1 if lost or not opened else 0)


main()
