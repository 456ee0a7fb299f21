"""What a policy of retention has to keep, and what may go: a second telling of docs/commits.md, "What stays", which
shares nothing with the code. Steps are unique in a run here, and times are those of the commits."""

import dataclasses


@dataclasses.dataclass
class Policy:
    keep_last: int = 0  # 0: no such rule; the same for the others
    keep_every: int = 0
    keep_best: tuple = ()  # (metric, "min" or "max", count)
    keep_seconds: int = 0
    keep_without_metric: bool = False
    abandoned_seconds: int = 0  # of directories *.tmp

    def words(self, keep_inside=""):
        """Of `cairnfs retain`."""
        words = ["--match", r"step-(\d+)"]
        for rule, value in (("--keep-last", self.keep_last), ("--keep-every", self.keep_every)):
            words += [rule, str(value)] if value else []
        words += [word for rule in self.keep_best for word in ("--keep-best", ":".join(map(str, rule)))]
        words += ["--keep-for", f"{self.keep_seconds}s"] if self.keep_seconds else []
        words += ["--keep-without-metric"] if self.keep_without_metric else []
        words += ["--abandoned", f"*.tmp:{self.abandoned_seconds}s"] if self.abandoned_seconds else []
        words += ["--keep-inside", keep_inside] if keep_inside else []
        return words


@dataclasses.dataclass
class Checkpoint:
    step: int
    time: float  # in seconds since 1970
    metrics: dict = dataclasses.field(default_factory=dict)
    pinned: bool = False
    held: bool = False
    sealed: bool = False
    open_on: set = dataclasses.field(default_factory=set)  # names of hosts

    @property
    def age(self):
        return self.step, self.time

    def is_kept_by_hand(self, sees_open):
        return self.pinned or self.held or self.sealed or sees_open(self)


def keeps(policy, one, counted, now):
    """Whether a rule keeps the checkpoint. `counted`: what takes one of the places of the rules."""
    newer = [other for other in counted if other.age > one.age]
    if policy.keep_last and len(newer) < policy.keep_last:
        return True
    if policy.keep_every and one.step % policy.keep_every == 0:
        return True
    if policy.keep_seconds and now < one.time + policy.keep_seconds:
        return True
    for metric, better, count in policy.keep_best:
        if metric not in one.metrics:
            if policy.keep_without_metric:
                return True
            continue
        def rank(other, metric=metric, sign=1 if better == "max" else -1):
            return sign * other.metrics[metric], other.age
        ahead = [other for other in counted if metric in other.metrics and rank(other) > rank(one)]
        if len(ahead) < count:
            return True
    return False


def may_go(policy, checkpoints, now, sees_open=lambda one: bool(one.open_on)):
    """Those of the checkpoints that nothing keeps."""
    if policy is None:
        return []
    counted = [one for one in checkpoints if not sees_open(one)]
    if not counted:
        return []
    newest, last = max(one.age for one in counted), max(one.time for one in counted)
    return [one for one in checkpoints
            if one.age < newest and one.time < last and not one.is_kept_by_hand(sees_open)
            and not keeps(policy, one, counted, now)]
