"""Linux's end of udp_tap.sh: UDP with segmentation offload both ways, and a router's advertisements.

    udp_peer.py echo ADDRESS COUNT SIZE [SOURCE]   sends datagrams, by UDP_SEGMENT if the kernel has it; all come back
    udp_peer.py burst ADDRESS COUNT SIZE           asks for datagrams and takes them, by UDP_GRO if the kernel has it
    udp_peer.py router DEVICE PREFIX SECONDS       answers solicitations: a prefix of 64 bits, an MTU, a router
"""

import socket
import struct
import sys

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
SO_RCVBUFFORCE = 33
NUMBER_BYTES = 8
MOST_IN_A_FRAME = 1472
AT_A_TIME = 40  # fit both ends' buffers, whatever a datagram is charged there


def open_socket(address, port, source=None):
    peer = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    udp = socket.socket(peer[0], socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    udp.settimeout(5)
    if source:
        udp.bind((source, 0))
    udp.connect(peer[4])
    return udp


def datagram(number, size):
    return f"{number:0{NUMBER_BYTES}}".encode().ljust(size, b".")


def read(udp):
    """Datagrams that the kernel gives at once: one, or some that it has joined."""
    data, control, _, _ = udp.recvmsg(1 << 16, 64)
    size = len(data)
    for level, kind, value in control:
        if (level, kind) == (SOL_UDP, UDP_GRO):
            size = struct.unpack("i", value[:4])[0]
    return [data[at : at + size] for at in range(0, len(data), size)] or [b""]


def take(udp, first, count, size):
    """Takes `count` datagrams, each whole and in its place; returns how many reads that took."""
    reads, number = 0, first
    while number < first + count:
        reads += 1
        for data in read(udp):
            if data != datagram(number, size):
                sys.exit(f"datagram {number} came as {len(data)} bytes: {data[:16]!r}")
            number += 1
    return reads


def accepts(udp, option, value):
    try:
        udp.setsockopt(SOL_UDP, option, value)
        return True
    except OSError:
        return False


def echo(address, count, size, source=None):
    udp = open_socket(address, 7, source)
    # Datagrams that would have to be fragmented are not cut by offload.
    segments = size <= MOST_IN_A_FRAME and accepts(udp, UDP_SEGMENT, size)
    for first in range(0, count, AT_A_TIME):
        numbers = range(first, min(first + AT_A_TIME, count))
        datagrams = [datagram(number, size) for number in numbers]
        if segments:
            udp.send(b"".join(datagrams))
        else:
            for one in datagrams:
                udp.send(one)
        take(udp, first, len(datagrams), size)
    print(f"  {count} datagrams came back, sent {'segmented by offload' if segments else 'one by one'}")


def burst(address, count, size):
    udp = open_socket(address, 19)
    joins = accepts(udp, UDP_GRO, 1)
    udp.send(f"{count} {size}".encode())
    reads = take(udp, 0, count, size)
    print(f"  {count} datagrams in {reads} reads, {'with' if joins else 'without'} UDP_GRO")


def router(device, prefix, seconds):
    icmp = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    icmp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    index = socket.if_nametoindex(device)
    group = socket.inet_pton(socket.AF_INET6, "ff02::2") + struct.pack("@I", index)
    icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    icmp.settimeout(seconds)
    while True:
        message, sender = icmp.recvfrom(2048)
        if message[0] == 133:
            break
    print(f"  {sender[0]} solicits routers", flush=True)
    # RFC 4861 4.2: hop limit, flags, lifetime, two timers; 4.6.2: on-link, autonomous; 4.6.4: MTU.
    advertisement = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    advertisement += struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 1800, 0) + socket.inet_pton(socket.AF_INET6, prefix)
    advertisement += struct.pack("!BBHI", 5, 1, 0, 1400)
    icmp.sendto(advertisement, ("ff02::1", 0, 0, index))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["echo", address, count, size, *source]:
            echo(address, int(count), int(size), *source)
        case ["burst", address, count, size]:
            burst(address, int(count), int(size))
        case ["router", device, prefix, seconds]:
            router(device, prefix, float(seconds))
        case _:
            sys.exit(__doc__)
