"""What a run found: a table for people, JSON for programs."""

import json


def amount(value, unit):
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "B":
        return f"{value / (1 << 20):.0f} MiB"
    if unit == "/s":
        return f"{value:,.0f}/s"
    if unit == "s":
        return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.2f} us"
    if unit == "%":
        return f"{value:.1f} %" if value >= 1 else f"{value:.2f} %"
    return f"{value:.2f} {unit}".strip()


def spread_of(check):
    """From the lowest to the highest, in the unit of the value; empty where they are one."""
    if check.low == check.high:
        return ""
    if check.unit == "":
        return f"{check.low:.2f} to {check.high:.2f}"
    return f"{amount(check.low, check.unit)} to {amount(check.high, check.unit)}"


def goal_of(check):
    if check.at_least is not None:
        return f">= {check.at_least:g} {check.unit}".strip()
    if check.at_most is not None:
        return f"<= {check.at_most:g} {check.unit}".strip()
    return "reported"


def verdict(check):
    return {None: "", True: "met", False: "NOT MET"}[check.met]


def show(row, write):
    """One row, as it comes."""
    write(f"\n{row.measure}   (load average {row.load[0]:.1f} to {row.load[1]:.1f}, {row.seconds:.0f} s)")
    if row.cannot_run:
        write(f"  CANNOT RUN: {row.cannot_run}")
    for who, figure in row.figures.items():
        write(f"  {who:<44} {amount(figure.median, figure.unit):>14}   "
              f"({amount(figure.low, figure.unit)} .. {amount(figure.high, figure.unit)})")
    for check in row.checks:
        spread = spread_of(check)
        write(f"  -> {check.name:<41} {amount(check.value, check.unit):>14}   {goal_of(check):<14} {verdict(check):<8} "
              f"{'(' + spread + ')' if spread else ''}")
    for note in row.notes:
        write(f"     {note}")


def summary(rows, write, quick):
    checks = [check for row in rows for check in row.checks if check.met is not None]
    missed = [(row, check) for row in rows for check in row.checks if check.met is False]
    absent = [row for row in rows if row.cannot_run]
    write(f"\n{len(checks) - len(missed)} of {len(checks)} goals met"
          f"{'; with --quick at smaller sizes than the goals are for' if quick else ''}")
    for row, check in missed:
        write(f"  missed: {row.measure}: {check.name}: {amount(check.value, check.unit)}, goal {goal_of(check)}")
    for row in absent:
        write(f"  cannot run: {row.measure}: {row.cannot_run}")


def as_json(bench, rows):
    return json.dumps({"machine": bench.machine, "size_bytes": bench.size, "rounds": bench.rounds, "quick": bench.quick,
                       "pool_bytes": bench.pool_bytes, "began": bench.began,
                       "revision": bench.revision, "rows": [row.as_json() for row in rows]},
                      indent=1) + "\n"


def as_markdown(rows, write):
    """The tables of docs/performance.md: goals, and CPU time."""
    write("| measure | against | ratio or value | spread | goal | |")
    write("| --- | --- | ---: | --- | --- | --- |")
    for row in rows:
        for check in row.checks:
            cells = [row.measure, check.name, amount(check.value, check.unit), spread_of(check), goal_of(check),
                     verdict(check)]
            write(f"| {' | '.join(cells)} |")
        if row.cannot_run:
            write(f"| {row.measure} | | | | | cannot run: {row.cannot_run} |")
    cpu_lines = [line for row in rows for line in cpu_of(row)]
    if cpu_lines:
        write("\n| CPU seconds per GiB | of | daemon | system |\n| --- | --- | ---: | ---: |")
    for line in cpu_lines:
        write(line)


def cpu_of(row):
    """One line for each participant whose CPU time was taken: medians, and the spread of more rounds than one."""
    cells = {}
    for name, figure in row.figures.items():
        if name.startswith("CPU of "):
            who, _, whose = name.removeprefix("CPU of ").rpartition(": ")
            low, high = f"{figure.low:.2f}", f"{figure.high:.2f}"
            spread = f" ({low} to {high})" if low != high else ""
            cells.setdefault(who, {})[whose] = f"{figure.median:.2f}{spread}"
    return [f"| {row.measure} | {who} | {cell.get('daemon', '')} | {cell.get('system', '')} |"
            for who, cell in cells.items()]
