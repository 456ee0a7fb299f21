#!/usr/bin/env python3
"""Carries TCP between a host and its metadata store, and keeps what the host sends for as long as it is told to.

    holding_proxy.py LISTEN=TARGET...        (each ADDRESS:PORT)

"hold" on stdin: what hosts send from now on waits here, and is acknowledged. "release": it goes on, in order. What the
store sends is passed on at all times. Answers each with a line: how many bytes wait. Ends when stdin does.
"""

import asyncio
import contextlib
import sys


class Proxy:
    def __init__(self):
        self.may_pass = asyncio.Event()
        self.may_pass.set()
        self.waiting_bytes = 0
        self.tasks = set()  # the event loop alone does not keep them

    async def carry(self, source, sink, is_held):
        with contextlib.suppress(OSError):
            queue = asyncio.Queue()
            sender = asyncio.create_task(self.send(queue, sink, is_held))
            while block := await source.read(1 << 16):
                self.waiting_bytes += len(block) if is_held else 0
                queue.put_nowait(block)
            queue.put_nowait(b"")
            await sender
        sink.close()

    async def send(self, queue, sink, is_held):
        while block := await queue.get():
            if is_held:
                await self.may_pass.wait()
                self.waiting_bytes -= len(block)
            sink.write(block)
            with contextlib.suppress(OSError):
                await sink.drain()

    async def serve(self, listen, target):
        async def connected(reader, writer):
            try:
                store_reader, store_writer = await asyncio.open_connection(*split(target))
            except OSError:
                writer.close()
                return
            for task in (self.carry(reader, store_writer, True), self.carry(store_reader, writer, False)):
                task = asyncio.create_task(task)
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        await asyncio.start_server(connected, *split(listen))

    async def obey(self):
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print("ready", flush=True)
        while line := await reader.readline():
            (self.may_pass.clear if line.strip() == b"hold" else self.may_pass.set)()
            print(self.waiting_bytes, flush=True)


def split(address):
    host, _, port = address.rpartition(":")
    return host, int(port)


async def main():
    proxy = Proxy()
    for pair in sys.argv[1:]:
        await proxy.serve(*pair.split("="))
    await proxy.obey()


if __name__ == "__main__":
    asyncio.run(main())
