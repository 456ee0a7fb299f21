"""A stranger on the network, who tries the ports of a node: garbage, plain HTTP/2, TLS cut and damaged, TLS without a
certificate or with one of his own, messages of joining with no token. Run as a program in the stranger's namespace:

    strangers.py --seconds N --seed N [--certificate PEM] HOST:PORT ... --join HOST:PORT

Prints JSON: how many tries of each kind there were, and what was answered where nothing may be.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import random
import socket
import ssl
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = struct.pack(">I", 0)[1:] + b"\x04\x00" + struct.pack(">I", 0)
HEADERS = struct.pack(">I", 4)[1:] + b"\x01\x05" + struct.pack(">I", 1) + b"\x83\x86\x84\x41"
WAIT_SECONDS = 2
STRANGERS = 8  # at once
PLAIN_ALLOWED = b"\x15"  # an alert of TLS: all that a plain caller may be told


def client_hello(server="node.cairnfs"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=server).do_handshake()
    return outgoing.read()


def damaged(data, rng):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[:rng.randrange(1, len(data) + 1)] if rng.random() < 0.5 else data)


class Stranger:
    def __init__(self, arguments, number):
        self.rng = random.Random(arguments.seed * 1000 + number)
        self.ports = [self.address(text) for text in arguments.ports]
        self.join = self.address(arguments.join)
        self.certificate = arguments.certificate
        self.hello = client_hello()
        self.tries, self.leaks = collections.Counter(), []
        self.held = []

    @staticmethod
    def address(text):
        host, _, port = text.rpartition(":")
        return host, int(port)

    def connect(self, address):
        return socket.create_connection(address, timeout=WAIT_SECONDS)

    def say(self, address, *pieces):
        """Sends the pieces in the clear; whatever comes back."""
        with self.connect(address) as connection:
            for piece in pieces:
                connection.sendall(piece)
            return connection.recv(4096)

    def secure(self, address):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if self.certificate and self.rng.random() < 0.5:
            context.load_cert_chain(self.certificate)
        return context.wrap_socket(self.connect(address))

    def garbage(self, address):
        answer = self.say(address, self.rng.randbytes(self.rng.randrange(1, 70_000)))
        self.expect_nothing("garbage", answer)

    def plain_http2(self, address):
        self.expect_nothing("plain HTTP/2", self.say(address, PREFACE + SETTINGS + HEADERS))

    def damaged_hello(self, address):
        self.say(address, damaged(self.hello, self.rng))

    def hello_that_never_ends(self, address):
        self.say(address, b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff\x03\x03",
                 *(b"\x00" * 16_000 for _ in range(20)))

    def no_certificate(self, address):
        with self.secure(address) as connection:
            connection.sendall(PREFACE + SETTINGS + HEADERS)
            self.expect_nothing("HTTP/2 without a good certificate", connection.recv(4096))

    def silence(self, address):
        self.held.append(self.connect(address))
        if len(self.held) > 25:
            self.held.pop(self.rng.randrange(25)).close()

    def join_without_token(self, _address):
        with self.secure(self.join) as connection:
            hello = b"cairnfs join\x01" + self.rng.randbytes(16)
            body = self.rng.choice([hello, damaged(hello, self.rng), self.rng.randbytes(self.rng.randrange(1, 60_000))])
            size = self.rng.choice([len(body), 0, 0xffffffff, 65_537])
            connection.sendall(struct.pack("<I", size) + body)
            answer = connection.recv(4096)
            if b"node:" in answer or b"etcd:" in answer or b"CERTIFICATE" in answer:
                self.leaks.append(f"joining without a token: {answer[:200]!r}")

    def expect_nothing(self, kind, answer):
        if answer and not answer.startswith(PLAIN_ALLOWED):
            self.leaks.append(f"{kind}: {answer[:200]!r}")

    def run(self, until):
        kinds = [self.garbage, self.plain_http2, self.damaged_hello, self.hello_that_never_ends, self.no_certificate,
                 self.silence, self.join_without_token]
        while time.monotonic() < until:
            kind = self.rng.choice(kinds)
            self.tries[kind.__name__] += 1
            with contextlib.suppress(OSError):
                kind(self.rng.choice([*self.ports, self.join]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ports", nargs="+")
    parser.add_argument("--join", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--certificate")
    arguments = parser.parse_args()
    strangers = [Stranger(arguments, number) for number in range(STRANGERS)]
    until = time.monotonic() + arguments.seconds
    with concurrent.futures.ThreadPoolExecutor(STRANGERS) as threads:
        list(threads.map(lambda stranger: stranger.run(until), strangers))
    tries = sum((stranger.tries for stranger in strangers), collections.Counter())
    print(json.dumps({"tries": tries, "leaks": [leak for stranger in strangers for leak in stranger.leaks][:20]}))


if __name__ == "__main__":
    main()
