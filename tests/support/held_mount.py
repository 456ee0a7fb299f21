"""A mount whose deferred commits are made only when a test lets them."""

import os

from cairnfs_mount import Mount, program, run


class HeldMount(Mount):
    """Its daemon makes deferred commits only while they are not held: what it starts to rename waits before it does."""

    def __init__(self, scratch):
        self.programs = scratch.directory("programs")
        self.hold_file = os.path.join(scratch.path, "hold")
        for name, source in (("cairnfsd", "cairnfsd"), ("cairnfs.real", "cairnfs")):
            run("cp", "--reflink=auto", program(source), os.path.join(self.programs, name))
        with open(os.path.join(self.programs, "cairnfs"), "w", encoding="ascii") as script:
            script.write(f"""#!/bin/sh
[ "$1" != apply-commit ] || while [ -e "{self.hold_file}" ]; do sleep 0.05; done
exec "{self.programs}/cairnfs.real" "$@"
""")
        os.chmod(script.name, 0o755)
        super().__init__(scratch)

    def mount_command(self):
        return [os.path.join(self.programs, "cairnfs"), *super().mount_command()[1:]]

    def hold(self):
        with open(self.hold_file, "wb"):
            pass

    def release(self):
        os.unlink(self.hold_file)
