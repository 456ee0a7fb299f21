"""Samples, what is said about them, and the rows of the table."""

import dataclasses
import statistics


@dataclasses.dataclass
class Summary:
    """Median and spread of a series, and the series itself."""
    samples: list
    unit: str

    @property
    def median(self):
        return statistics.median(self.samples)

    @property
    def low(self):
        return min(self.samples)

    @property
    def high(self):
        return max(self.samples)

    def as_json(self):
        return {"median": self.median, "min": self.low, "max": self.high, "unit": self.unit, "samples": self.samples}


@dataclasses.dataclass
class Check:
    """One goal: a value, the bound that it is held against, and whether it is met. No bound: reported only."""
    name: str
    value: float
    low: float
    high: float
    at_least: float = None
    at_most: float = None
    unit: str = ""

    @property
    def met(self):
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most)

    def as_json(self):
        return {**dataclasses.asdict(self), "met": self.met}


@dataclasses.dataclass
class Row:
    measure: str
    figures: dict = dataclasses.field(default_factory=dict)  # who -> Summary
    checks: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    cannot_run: str = ""
    load: tuple = (0.0, 0.0)  # load average before and after
    seconds: float = 0.0

    def figure(self, who, samples, unit):
        self.figures[who] = Summary(list(samples), unit)

    def ratio(self, name, ours, theirs, higher_is_better=True, **bounds):
        """Ours over theirs as "times as good": of the medians, with the lowest and highest of the rounds' own ratios."""
        def better(a, b):
            return (a / b if b else 0.0) if higher_is_better else (b / a if a else 0.0)
        one, other = self.figures[ours], self.figures[theirs]
        each = [better(a, b) for a, b in zip(one.samples, other.samples)]
        self.checks.append(Check(name, better(one.median, other.median), min(each), max(each), **bounds))

    def check(self, name, samples, unit="", **bounds):
        summary = Summary(list(samples), unit)
        self.checks.append(Check(name, summary.median, summary.low, summary.high, unit=unit, **bounds))

    def as_json(self):
        return {"measure": self.measure, "cannot_run": self.cannot_run, "load_average": self.load,
                "seconds": self.seconds, "notes": self.notes,
                "figures": {who: summary.as_json() for who, summary in self.figures.items()},
                "checks": [check.as_json() for check in self.checks]}


class Series:
    """Samples by participant and quantity, collected over rounds."""

    def __init__(self):
        self.values = {}

    def add(self, who, sample):
        for key, value in sample.items():
            self.values.setdefault((who, key), []).append(value)

    def get(self, who, key):
        return self.values[who, key]

    def rates(self, who, size, key="total_s"):
        return [size / seconds for seconds in self.get(who, key)]


def take_turns(rounds, participants, before_round=lambda number: None, warm_up=True):
    """Calls each participant once a round, one after the other: A B C, and C B A in every other round, so that none
    always finds the disk as the same one left it. The first round is not counted: files, segments and caches come into
    being in it. A participant returns its samples by name."""
    series = Series()
    for number in range(-1 if warm_up else 0, rounds):
        before_round(number)
        forwards = list(participants.items())
        for who, act in reversed(forwards) if number > 0 and number % 2 == 1 else forwards:
            sample = act()
            if number >= 0:
                series.add(who, sample)
    return series
