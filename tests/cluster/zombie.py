"""A process that has a file open on a host whose session is lost: nothing that it does may come through afterwards.

While the host is stopped or cut off, another one replaces what is in the file. Then the host is back and the process
writes on, as if nothing had been: it must be told (docs/contract.md, item 18), and the file must stay as the other
one left it.
"""

import time

import recorder

BYTES = 50000
SETTLED_S = 20  # a host that was away finds its peers again by then


class Zombie:
    def __init__(self, client, directory):
        self.client, self.path = client, directory + "/zombie"
        self.last_words = []
        client.must("open", path=self.path, handle="zombie")
        client.must("pwrite", handle="zombie", offset=0, bytes=65536, seed=1)
        client.must("fsync", handle="zombie")
        # These bytes are safe nowhere when the host is stopped.
        client.must("pwrite", handle="zombie", offset=16384, bytes=65536, seed=2)

    def overwrite(self, heir):
        """By another host, once the session of the first one has ended."""
        heir.must("put", path=self.path, bytes=BYTES, seed=3, sync=False)

    def go_on(self):
        self.last_words = [self.client.call("pwrite", handle="zombie", offset=32768, bytes=8192, seed=4),
                           self.client.call("fsync", handle="zombie")]

    def judge(self, clients):
        problems = []
        if self.last_words[-1].get("error") == 0:
            problems.append(f"the session of {self.client.name} was lost and its open file does not say so: "
                            + "; ".join(map(recorder.describe, self.last_words)))
        for client in clients:
            line = client.call("verify", path=self.path, bytes=BYTES, seed=3)
            deadline = time.monotonic() + SETTLED_S
            while line.get("error") != 0 and client.alive and time.monotonic() < deadline:
                time.sleep(0.5)
                line = client.call("verify", path=self.path, bytes=BYTES, seed=3)
            if line.get("error") != 0:
                problems.append(f"after healing: {recorder.describe(line)}")
            elif line["is"] != "same":
                problems.append(f"a write of a lost session came through: {self.path} is {line['is']} at "
                                f"{line.get('first_difference')}, seen from {client.name}")
        return problems
