"""Connections that each send most of a large message of gRPC, and never its end. Run as a program:

    unfinished_messages.py HOST PORT PATH CONNECTIONS

PATH is that of the method. Prints "sent", then JSON, once no connection can send more: how many bytes were sent, and how
many connections the other end has ended. Then it holds the others until its input ends.
"""

import json
import select
import socket
import struct
import sys
import time

MESSAGE_BYTES, SENT_BYTES = (12 << 20) - 100, 11 << 20
FRAME_BYTES = 16 << 10
QUIET_SECONDS = 3
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACKNOWLEDGES, ENDS_HEADERS = 1, 4
INITIAL_WINDOW = 4  # a setting


def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def header(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Connection:
    """HTTP/2 (RFC 9113), as much of it as one call takes."""

    def __init__(self, address, path):
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
                   (b"content-type", b"application/grpc"), (b"te", b"trailers")]
        self.to_send = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) +
                        frame(HEADERS, ENDS_HEADERS, 1, b"".join(header(*pair) for pair in headers)))
        self.received, self.sent, self.has_ended = b"", 0, False
        self.window, self.stream_window, self.initial_window = 65535, 65535, 65535

    def take(self, kind, flags, stream, body):
        if kind == SETTINGS and not flags & ACKNOWLEDGES:
            for at in range(0, len(body), 6):
                setting, value = struct.unpack(">HI", body[at:at + 6])
                if setting == INITIAL_WINDOW:
                    self.stream_window += value - self.initial_window
                    self.initial_window = value
            self.to_send += frame(SETTINGS, ACKNOWLEDGES, 0)
        elif kind == PING and not flags & ACKNOWLEDGES:
            self.to_send += frame(PING, ACKNOWLEDGES, 0, body)
        elif kind == WINDOW_UPDATE:
            more = struct.unpack(">I", body)[0]
            if stream == 0:
                self.window += more
            else:
                self.stream_window += more
        elif kind in (RESET, GOAWAY, HEADERS):
            self.has_ended = True

    def receive(self):
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        self.has_ended = self.has_ended or not data
        self.received += data
        while len(self.received) >= 9:
            size = int.from_bytes(self.received[:3], "big")
            if len(self.received) < 9 + size:
                break
            kind, flags, stream = self.received[3], self.received[4], struct.unpack(">I", self.received[5:9])[0]
            body, self.received = self.received[9:9 + size], self.received[9 + size:]
            self.take(kind, flags, stream, body)

    def send(self):
        """Whether something went out."""
        size = min(FRAME_BYTES, self.window, self.stream_window, SENT_BYTES - self.sent)
        if not self.to_send and size > 5:
            begin = b"\x00" + struct.pack(">I", MESSAGE_BYTES) if self.sent == 0 else b""
            self.to_send = frame(DATA, 0, 1, begin + b"x" * (size - len(begin)))
            self.window, self.stream_window, self.sent = self.window - size, self.stream_window - size, self.sent + size
        if not self.to_send:
            return False
        try:
            count = self.socket.send(self.to_send)
        except BlockingIOError:
            return False
        self.to_send = self.to_send[count:]
        return count > 0

    def pump(self):
        try:
            self.receive()
            return not self.has_ended and self.send()
        except OSError:
            self.has_ended = True
            return False


def main():
    host, port, path, count = sys.argv[1:]
    connections = [Connection((host, int(port)), path.encode()) for _ in range(int(count))]
    moved_at = time.monotonic()
    while time.monotonic() - moved_at < QUIET_SECONDS:
        live = [connection for connection in connections if not connection.has_ended]
        if any([connection.pump() for connection in live]):
            moved_at = time.monotonic()
        elif live:
            select.select([connection.socket for connection in live], [], [], 0.05)
    print("sent", flush=True)
    print(json.dumps({"bytes": sum(connection.sent for connection in connections),
                      "ended": sum(connection.has_ended for connection in connections)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
