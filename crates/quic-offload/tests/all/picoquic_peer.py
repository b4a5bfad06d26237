#!/usr/bin/env python3
"""A picoquic peer (from PyPI's aiopquic) in virtual time. A test feeds this process datagrams and the time.

    picoquic_peer.py client TO LOCAL SECOND_TO SECOND_LOCAL CA BYTES BACK ACTIONS
    picoquic_peer.py server CERTIFICATE KEY BYTES BACK ACTIONS

A client sends BYTES on a stream. A server expects them and answers with BACK. Both check the received data. Addresses are
IP@PORT. ACTIONS are joined by commas, and each runs once when that many bytes have arrived or been sent: path@N (a second
path), rotate@N (new keys), renew@N (a new connection ID of path 0), abandon@N (path 0).

Standard input: the time in nanoseconds (u64), a count (u32), and that many datagrams: source and destination (each 16
bytes of IPv6, or mapped IPv4, and a u16 port), length (u16), bytes. Standard output: the next time (u64), the count,
datagrams in the same form, and a line of text with its length (u16): the state of the transfer. All numbers are big-endian.
"""

import ctypes
import ipaddress
import json
import socket
import struct
import sys

import aiopquic._binding._transport as transport

C = ctypes.CDLL(transport.__file__)
POINTER, U64, SIZE, BYTES = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, U64, POINTER, SIZE, ctypes.c_int, POINTER, POINTER)
DATA, FIN, RESET, STOP, STATELESS_RESET, CLOSE, APPLICATION_CLOSE, TO_SEND, READY = 0, 1, 2, 3, 4, 5, 6, 8, 10
PATH_AVAILABLE, PATH_SUSPENDED, PATH_DELETED = 20, 21, 22
MARKER = b"PLAINTEXT"
NAME = b"server.nic-offload.test"
# Some picoquic functions take a zero time for "never", so the clock starts later.
EPOCH = 1_000_000


def function(name, result, *arguments):
    found = getattr(C, "picoquic_" + name)
    found.restype, found.argtypes = result, arguments
    return found


create = function("create", POINTER, ctypes.c_uint32, *[BYTES] * 4, CALLBACK, *[POINTER] * 3, BYTES, U64, ctypes.POINTER(U64),
                  BYTES, BYTES, SIZE)
create_client = function("create_client_cnx", POINTER, POINTER, BYTES, U64, ctypes.c_uint32, BYTES, BYTES, CALLBACK, POINTER)
prepare = function("prepare_next_packet_ex", ctypes.c_int, POINTER, U64, POINTER, SIZE, ctypes.POINTER(SIZE), POINTER, POINTER,
                   POINTER, POINTER, POINTER, ctypes.POINTER(SIZE))
incoming = function("incoming_packet_ex", ctypes.c_int, POINTER, BYTES, SIZE, BYTES, BYTES, ctypes.c_int, ctypes.c_ubyte, POINTER,
                    U64)
next_wake = function("get_next_wake_time", U64, POINTER, U64)
mark_active = function("mark_active_stream", ctypes.c_int, POINTER, U64, ctypes.c_int, POINTER)
room = function("provide_stream_data_buffer", POINTER, POINTER, SIZE, ctypes.c_int, ctypes.c_int)
multipath = function("set_default_multipath_option", None, POINTER, ctypes.c_int)
path_callbacks = function("enable_path_callbacks", None, POINTER, ctypes.c_int)
probe = function("probe_new_path_ex", ctypes.c_int, POINTER, BYTES, BYTES, ctypes.c_int, U64, ctypes.c_int)
abandon = function("abandon_path", ctypes.c_int, POINTER, U64, U64, BYTES, U64)
rotate = function("start_key_rotation", ctypes.c_int, POINTER)
renew = function("renew_connection_id", ctypes.c_int, POINTER, ctypes.c_int)
close = function("close", ctypes.c_int, POINTER, U64)
state_of = function("get_cnx_state", ctypes.c_int, POINTER)


def body(start, count):
    """The bytes of the tests' streams: they tell where they are, with a marker among them."""
    marked = len(MARKER)
    return bytes(MARKER[at % 97] if at % 97 < marked else (at // 97 + at % 251) & 255 for at in range(start, start + count))


def raw(ip, port):
    """A sockaddr, padded to a sockaddr_storage."""
    if ip.ipv4_mapped:
        text = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + ip.ipv4_mapped.packed
    else:
        text = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0) + ip.packed + bytes(4)
    return text.ljust(128, b"\0")


def cooked(storage):
    family, port = struct.unpack("=H", storage[:2])[0], struct.unpack("!H", storage[2:4])[0]
    if family == socket.AF_INET:
        return bytes(10) + b"\xff\xff" + storage[4:8], port
    return storage[8:24], port


def address(text):
    ip, port = text.split("@")
    ip = ipaddress.ip_address(ip)
    return (ipaddress.IPv6Address(f"::ffff:{ip}") if ip.version == 4 else ip), int(port)


class Peer:
    def __init__(self, certificate, key, ca, total, actions):
        self.now = U64(EPOCH)
        self.callback = CALLBACK(self.heard)
        self.quic = create(8, certificate, key, ca, b"nic-offload", self.callback, None, None, None, bytes(16), EPOCH,
                           ctypes.byref(self.now), None, None, 0)
        assert self.quic, "picoquic_create failed"
        multipath(self.quic, 1)
        self.connection, self.ready, self.closed, self.said = None, False, None, {}
        self.sent, self.total, self.begun, self.finished, self.got = 0, total, False, False, 0
        self.actions = [(name, int(at)) for name, at in (action.split("@") for action in actions.split(",") if action)]
        self.done, self.failed, self.paths, self.deleted, self.fault = [], [], 0, 0, None
        self.buffer = ctypes.create_string_buffer(1536)
        self.stream = 0

    def connect(self, to, local, second):
        self.remote, self.local, self.second = to, local, second
        self.connection = create_client(self.quic, raw(*to), EPOCH, 1, NAME, b"nic-offload", self.callback, None)
        assert self.connection, "picoquic_create_client_cnx failed"
        path_callbacks(self.connection, 1)

    def heard(self, connection, stream, data, length, event, _context, _stream_context):
        if self.connection is None:
            self.connection = connection
            path_callbacks(connection, 1)
        if event in (DATA, FIN):
            if length:
                got = ctypes.string_at(data, length)
                if got != body(self.got, length):
                    self.fault = f"other bytes from {self.got} on"
                self.got += length
            self.finished |= event == FIN
            self.stream = stream
        elif event == TO_SEND:
            count = min(length, self.total - self.sent)
            is_last = self.sent + count == self.total
            into = room(data, count, int(is_last), int(not is_last))
            ctypes.memmove(into, body(self.sent, count), count)
            self.sent += count
        elif event == READY:
            self.ready = True
        elif event in (CLOSE, APPLICATION_CLOSE, STATELESS_RESET):
            self.closed = event
        elif event in (RESET, STOP):
            self.fault = f"stream event {event}"
        elif event == PATH_AVAILABLE:
            self.paths += 1
        elif event == PATH_DELETED:
            self.deleted += 1
        return 0

    def work(self, is_client):
        """Begins to send, and does what is due."""
        if (self.ready if is_client else self.finished) and self.total and not self.begun:
            self.begun = True
            assert mark_active(self.connection, self.stream, 1, None) == 0
        while self.actions and max(self.sent, self.got) >= self.actions[0][1] and self.ready:
            name = self.actions[0][0]
            code = self.act(name)
            if code and name in ("path", "rotate"):
                # The path has no connection ID of the peer yet, or the last keys are not acknowledged: try again later.
                return
            self.actions.pop(0)
            (self.failed if code else self.done).append(name if not code else f"{name}: {code}")

    def act(self, name):
        if name == "path":
            (to, local) = self.second
            return probe(self.connection, raw(*to), raw(*local), 0, self.now.value, 0)
        if name == "rotate":
            return rotate(self.connection)
        if name == "renew":
            return renew(self.connection, 0)
        if name == "abandon":
            return abandon(self.connection, 0, 0, b"enough", self.now.value)
        if name == "close":
            return close(self.connection, 0)
        return -1

    def packets(self):
        length, message = SIZE(0), SIZE(0)
        to, source = ctypes.create_string_buffer(128), ctypes.create_string_buffer(128)
        index, connection = ctypes.c_int(0), POINTER(None)
        identifier = ctypes.create_string_buffer(21)
        for _ in range(64):
            code = prepare(self.quic, self.now.value, self.buffer, 1536, ctypes.byref(length), to, source, ctypes.byref(index),
                           identifier, ctypes.byref(connection), None)
            if code or not length.value:
                return
            yield cooked(source.raw), cooked(to.raw), self.buffer.raw[: length.value]

    def step(self, now, datagrams, is_client):
        self.now.value = EPOCH + now // 1000
        for source, to, data in datagrams:
            incoming(self.quic, data, len(data), raw(*source), raw(*to), 0, 0, ctypes.byref(POINTER(None)), self.now.value)
        self.work(is_client)
        sent = list(self.packets())
        wake = next_wake(self.quic, self.now.value)
        return (wake - EPOCH) * 1000 if EPOCH <= wake < 1 << 60 else (1 << 64) - 1, sent

    def standing(self):
        return {
            "ready": self.ready, "closed": self.closed, "fault": self.fault, "received": self.got, "finished": self.finished,
            "sent": self.sent, "done": self.done, "failed": self.failed, "paths": self.paths, "deleted": self.deleted,
            "waiting": [name for name, _ in self.actions],
        }


def read(count):
    got = sys.stdin.buffer.read(count)
    if len(got) < count:
        sys.exit(0)
    return got


def main():
    role, *args = sys.argv[1:] or ["help"]
    encoded = [arg.encode() for arg in args]
    if role == "client" and len(args) == 8:
        peer = Peer(None, None, encoded[4], int(args[5]), args[7])
        second = tuple(map(address, args[2:4]))
        peer.connect(address(args[0]), address(args[1]), second)
    elif role == "server" and len(args) == 5:
        peer = Peer(encoded[0], encoded[1], None, int(args[3]), args[4])
    else:
        sys.exit(__doc__)
    while True:
        now, count = struct.unpack("!QI", read(12))
        datagrams = []
        for _ in range(count):
            source, source_port, to, to_port, length = struct.unpack("!16sH16sHH", read(38))
            datagrams.append(((ipaddress.IPv6Address(source), source_port), (ipaddress.IPv6Address(to), to_port), read(length)))
        wake, sent = peer.step(now, datagrams, role == "client")
        out = [struct.pack("!QI", wake, len(sent))]
        for (source, source_port), (to, to_port), data in sent:
            out.append(struct.pack("!16sH16sHH", source, source_port, to, to_port, len(data)) + data)
        standing = json.dumps(peer.standing()).encode()
        out.append(struct.pack("!H", len(standing)) + standing)
        sys.stdout.buffer.write(b"".join(out))
        sys.stdout.buffer.flush()


main()
