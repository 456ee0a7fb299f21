"""What tools/gpu-check is made of: the library and its functions, memory of hosts and devices, the checks, the
measurements with their peers, the goals, and the report. Needs nothing beside Python, and torch for devices."""
