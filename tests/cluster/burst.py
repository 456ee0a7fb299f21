"""Names made as fast as they can be on a host that is about to be cut off, so that some transactions are on their way.

What was sent and not delivered before the cut, the network delivers after it (TCP sends again): the store must refuse it
then, since the host's session has ended. A name whose call failed, which was not there when the lease had ended, and is
there in the end, was made by a lost session.

Each client has a directory of its own: in one directory the kernel lets a host make one name at a time. They are
directories, because to open a file may fail for other reasons after its name was made.
"""

import threading

import recorder


class Burst:
    def __init__(self, clients, directory):
        self.clients, self.directory = clients, directory
        self.failed = set()  # names whose call answered with an error
        self.is_stopped = False
        self.before = set()
        clients[0].must("mkdir", path=directory, mode=0o755)
        for index in range(len(clients)):
            clients[0].must("mkdir", path=f"{directory}/{index}", mode=0o755)
        self.threads = [threading.Thread(target=self._make, args=(index, client), daemon=True)
                        for index, client in enumerate(clients)]
        for thread in self.threads:
            thread.start()

    def _make(self, index, client):
        for number in range(100000):
            name = f"{index}/{number}"
            line = client.call("mkdir", path=f"{self.directory}/{name}", mode=0o755)
            if line.get("error"):
                self.failed.add(name)
            if line.get("error", -1) != 0 or self.is_stopped:
                return

    def names(self, client):
        return {f"{index}/{name}" for index in range(len(self.clients))
                for name in client.must("readdir", path=f"{self.directory}/{index}")["names"]}

    def look(self, other):
        """From another host, once the lease has ended and before the host is back."""
        self.before = self.names(other)

    def stop(self):
        """The host is back. A call that succeeds now was tried anew, under a new session."""
        self.is_stopped = True
        for thread in self.threads:
            thread.join()

    def judge(self, other):
        late = sorted((self.names(other) - self.before) & self.failed)
        return [f"made by a lost session: {self.directory}/{name}" for name in late]
