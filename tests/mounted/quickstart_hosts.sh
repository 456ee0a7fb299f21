#!/bin/bash
# The README's demonstration of several hosts, as a user runs it, on the programs of the build that is tested. It fails
# when a rank finds a tensor changed, or the missing copies are not made.
set -euo pipefail
exec /usr/bin/python3 "$(dirname "$0")/../../tools/quickstart_hosts.py" 3
