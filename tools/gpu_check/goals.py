"""What the client library is to reach, row by row: the figure, the goal, and whether it was met. Pure functions of what
measure.py took."""

import dataclasses
import statistics
from collections.abc import Callable

GB = 1e9


@dataclasses.dataclass(frozen=True)
class Goal:
    row: str
    unit: str
    limit: float
    is_at_most: bool  # else at least
    value: Callable  # of the figures; KeyError where one of them is missing
    needs: tuple = ()  # "device", "CairnFS", "torch"
    of_bytes: int = 0  # the size of the state that the goal is about; 0: any


@dataclasses.dataclass(frozen=True)
class Row:
    row: str
    figure: float  # or None
    unit: str
    goal: str
    verdict: str  # "passed", "missed", "not measured"
    note: str = ""


def _median(values):
    return statistics.median(values)


def _ratio(over, under):
    """Of figures that were taken in turns: the median of each round's ratio."""
    return _median([one / other for one, other in zip(over, under, strict=True)])


def _held_with_small_ring(figures):
    size, ring = figures["device.bytes"], figures["device.small_ring_ring_bytes"][0]
    rate = size / _median(figures["device.plain_written_s"])
    return _median(figures["device.small_ring_held_s"]) / ((size - ring) / rate)


def _held_with_snapshot(figures):
    if not all(figures["device.snapshot_snapshot"]):
        raise KeyError("the device had no memory for a snapshot")
    return _median(figures["device.snapshot_held_s"]) * 1e3


def _load(figures, kind):
    rates = [figures[f"{kind}.load_bytes"] / _median(figures[f"{kind}.plain_read_s"])]
    if kind == "device":
        rates.append(_median(figures["device.pinned_to_device_bytes_per_s"]))
    return figures[f"{kind}.load_bytes"] / _median(figures[f"{kind}.load_s"]) / min(rates)


def all_goals(kind):
    """Of a run whose tensors lie in memory of that kind, "device" or "host"."""
    return (
        Goal("fingerprints", "GB/s", 500, False,
             lambda f: _median(f["device.fingerprint_bytes_per_s"]) / GB, ("device",)),
        Goal("unchanged: caller held", "ms", 50, True,
             lambda f: _median(f["device.unchanged_held_s"]) * 1e3, ("device",), 10**10),
        Goal("unchanged: over the bus", "MB", 1, True,
             lambda f: max(f["device.unchanged_bus_bytes"]) / 1e6, ("device",), 10**10),
        Goal("changed, ring >= state: held / (size / pinned copy rate)", "x", 1.15, True,
             lambda f: _median(f["device.changed_held_s"])
             / (f["device.bytes"] / _median(f["device.pinned_to_host_bytes_per_s"])), ("device",)),
        Goal("changed, smaller ring: held / ((size - ring) / write rate)", "x", 1.15, True, _held_with_small_ring,
             ("device",)),
        Goal("changed, snapshot=\"device\": caller held", "ms", 20, True, _held_with_snapshot, ("device",), 10**10),
        Goal("saves with 10 % changed: space / what changed", "x", 1.1, True,
             lambda f: f[f"{kind}.chain_space_bytes"] / f[f"{kind}.chain_changed_bytes"], ("CairnFS",)),
        Goal("saves with 10 % changed: load / load of a whole file", "x", 1.2, True,
             lambda f: _ratio(f[f"{kind}.chain_load_s"], f[f"{kind}.whole_load_s"]), ("CairnFS",)),
        Goal("changed: caller held / torch.save of device tensors", "x", 0.2, True,
             lambda f: _ratio(f["device.changed_held_s"], f["device.torch_s"]), ("device", "torch")),
        Goal("changed, until durable: rate / as many plain writers", "x", 0.9, False,
             lambda f: _ratio(f[f"{kind}.plain_durable_s"], f[f"{kind}.changed_durable_s"])),
        Goal("load: rate / min(as many readers, pinned copies)", "x", 0.8, False, lambda f: _load(f, kind)),
        Goal("CPU, unchanged, on CairnFS: torch.save / save", "x", 3, False,
             lambda f: _ratio(f["host.torch_s"], f["host.unchanged_durable_s"]), ("CairnFS", "torch"), 4 << 30),
        Goal("CPU, changed, on CairnFS: torch.save / save", "x", 1, False,
             lambda f: _ratio(f["host.torch_s"], f["host.changed_durable_s"]), ("CairnFS", "torch"), 4 << 30),
    )


def judge(goal, figures, lacks, size):
    """The Row. `lacks` says of what a goal can need why it is not there; `size` is the state's."""
    text = f"{'<=' if goal.is_at_most else '>='} {goal.limit:g} {goal.unit}"
    reasons = [lacks[need] for need in goal.needs if need in lacks]
    if reasons:
        return Row(goal.row, None, goal.unit, text, "not measured", reasons[0])
    try:
        value = goal.value(figures)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        return Row(goal.row, None, goal.unit, text, "not measured", f"no figure {error}")
    is_met = value <= goal.limit if goal.is_at_most else value >= goal.limit
    note = "" if size >= goal.of_bytes * 0.99 else f"the goal is for {goal.of_bytes / GB:.3g} GB"
    return Row(goal.row, value, goal.unit, text, "passed" if is_met else "missed", note)


def table(kind, figures, lacks, size):
    return [judge(goal, figures, lacks, size) for goal in all_goals(kind)]
