"""A process that opens files and locks them as it is told, for tests of locks."""

import errno
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time

OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
FLOCK = struct.Struct("@hhqqi4x")
TYPES = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}


class Alarm(Exception):
    pass


def on_alarm(*_):
    # An alarm that came twice before it was heard is one.
    if signal.setitimer(signal.ITIMER_REAL, 0)[0]:
        raise Alarm


def record_lock(files, command, name, kind, start, length):
    packed = FLOCK.pack(TYPES[kind], os.SEEK_SET, start, length, 0)
    kind, _, start, length, pid = FLOCK.unpack(fcntl.fcntl(files[name], command, packed))
    return [kind, start, length, pid]


def take_turns(path, counter, rounds):
    """Adds to the counter with a lock as the only protection, opening the file for each turn."""
    for _ in range(rounds):
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with open(counter, "r+", encoding="ascii") as counted:
                value = int(counted.read())
                counted.seek(0)
                counted.write(str(value + 1))
                counted.flush()


def with_alarm(files, seconds, *words):
    """Again and again: one that comes before the call sleeps in the kernel does not wake it."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        return obey(files, *words)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def obey(files, verb, *words):
    if verb == "open":
        name, path = words
        files[name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    elif verb == "close":
        os.close(files.pop(words[0]))
    elif verb == "flock":
        fcntl.flock(files[words[0]], words[1])
    elif verb == "record":
        return record_lock(files, *words)
    elif verb == "with_alarm":
        return with_alarm(files, *words)
    elif verb == "turns":
        take_turns(*words)
    return None


def main():
    signal.signal(signal.SIGALRM, on_alarm)
    files = {}
    for line in sys.stdin:
        try:
            answer = ["ok", obey(files, *json.loads(line))]
        except Alarm:
            answer = ["alarm", None]
        except OSError as error:
            answer = [errno.errorcode[error.errno], None]
        print(json.dumps(answer), flush=True)


class Process:
    def __init__(self, path):
        self.path = path
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.call("open", "f", path)

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds=120):
        assert not self.waits(seconds), f"no answer within {seconds} s"
        return json.loads(self.process.stdout.readline())

    def call(self, *words):
        self.ask(*words)
        return self.answer()

    def flock(self, operation, name="f"):
        return self.call("flock", name, operation | fcntl.LOCK_NB)[0]

    def posix(self, kind, start=0, length=0, name="f"):
        return self.call("record", fcntl.F_SETLK, name, kind, start, length)[0]

    def ofd(self, kind, start=0, length=0, name="f"):
        return self.call("record", OFD_SETLK, name, kind, start, length)[0]

    def waits(self, seconds=0.3):
        """Whether the call that was asked for goes on for so long."""
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def kill(self):
        self.process.kill()
        begin = time.monotonic()
        self.process.wait(timeout=60)
        return time.monotonic() - begin

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


if __name__ == "__main__":
    main()
