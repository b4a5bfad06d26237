#!/usr/bin/env python3
"""HTTP/3 by aioquic, a peer of ours: fetches and sends, or serves a folder.

    aioquic_peer.py get ADDRESS:PORT CA SUITE PATH FILE      fetches, changing keys twice on the way
    aioquic_peer.py put ADDRESS:PORT CA SUITE FILE           sends FILE, changing keys twice, and prints the answer
    aioquic_peer.py serve ADDRESS:PORT CERTIFICATE KEY FOLDER

SUITE: AES_128_GCM_SHA256, AES_256_GCM_SHA384 or CHACHA20_POLY1305_SHA256.
"""

import asyncio
import hashlib
import os
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import CipherSuite, Epoch

NAME = "server.nic-offload.test"


class Http(QuicConnectionProtocol):
    """One end of a connection: streams' answers or requests are kept until they end."""

    def __init__(self, *args, folder=None, **named):
        super().__init__(*args, **named)
        self.http = H3Connection(self._quic)
        self.folder = folder
        self.headers, self.data, self.ended = {}, {}, {}
        self.updates = 0

    def quic_event_received(self, event):
        for http in self.http.handle_event(event):
            if isinstance(http, HeadersReceived):
                self.headers[http.stream_id] = dict(http.headers)
            elif isinstance(http, DataReceived):
                self.data.setdefault(http.stream_id, bytearray()).extend(http.data)
            if http.stream_ended:
                if self.folder is not None:
                    self.answer(http.stream_id)
                elif http.stream_id in self.ended:
                    self.ended[http.stream_id].set_result(None)

    async def change_keys(self, times):
        for _ in range(times):
            await asyncio.sleep(0.05)
            # RFC 9001 6.1: no key update before a packet under the current keys is acknowledged, whichever end
            # initiated them. aioquic leaves that to its user; otherwise a peer with an unanswered update could never
            # open a packet again.
            keys = None
            while keys != self.keys():
                keys = self.keys()
                await self.ping()
            self._quic.request_key_update()
            self.updates += 1
        await self.ping()

    def keys(self):
        return self._quic._cryptos[Epoch.ONE_RTT].recv.secret

    async def ask(self, method, path, body=b""):
        stream = self._quic.get_next_available_stream_id()
        self.ended[stream] = asyncio.get_running_loop().create_future()
        names = [(b":method", method), (b":scheme", b"https"), (b":authority", NAME.encode()), (b":path", path.encode())]
        self.http.send_headers(stream, names, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        await asyncio.wait_for(asyncio.gather(self.ended[stream], self.change_keys(2)), 30)
        return self.headers[stream].get(b":status"), bytes(self.data.get(stream, b""))

    def answer(self, stream):
        asked, body = self.headers.pop(stream), bytes(self.data.pop(stream, b""))
        if asked[b":method"] == b"PUT":
            answer = f"{len(body)} {hashlib.sha256(body).hexdigest()}\n".encode()
        else:
            name = os.path.basename(asked[b":path"].decode())
            with open(os.path.join(self.folder, name), "rb") as file:
                answer = file.read()
        self.http.send_headers(stream, [(b":status", b"200"), (b"content-length", str(len(answer)).encode())])
        self.http.send_data(stream, answer, end_stream=True)
        self.transmit()
        self.changing = asyncio.ensure_future(self.change_keys(1))


async def client(what, to, authority, suite, args):
    host, port = to.rsplit(":", 1)
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, server_name=NAME, max_stream_data=8 << 20, max_data=16 << 20)
    configuration.cipher_suites = [CipherSuite[suite]]
    configuration.load_verify_locations(authority)
    async with connect(host, int(port), configuration=configuration, create_protocol=Http) as http:
        if what == "get":
            status, body = await http.ask(b"GET", args[0])
            with open(args[1], "wb") as file:
                file.write(body)
            print(len(body), hashlib.sha256(body).hexdigest())
        else:
            with open(args[0], "rb") as file:
                status, body = await http.ask(b"PUT", "/", file.read())
            print(body.decode(), end="")
        assert status == b"200", status
        used = http._quic.tls.key_schedule.cipher_suite.name
        assert used == suite, used
        assert http.updates == 2, f"the keys changed {http.updates} times"


async def server(at, certificate, key, folder):
    host, port = at.rsplit(":", 1)
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN, max_stream_data=8 << 20, max_data=16 << 20)
    configuration.load_cert_chain(certificate, key)
    await serve(host, int(port), configuration=configuration, create_protocol=lambda *a, **n: Http(*a, folder=folder, **n))
    print("serves", flush=True)
    await asyncio.Future()


def main():
    what, *args = sys.argv[1:] or ["help"]
    if what in ("get", "put") and len(args) >= 4:
        asyncio.run(client(what, args[0], args[1], args[2], args[3:]))
    elif what == "serve" and len(args) == 4:
        asyncio.run(server(*args))
    else:
        sys.exit(__doc__)


main()
