"""Names of the keys in etcd; the package's docstring lists them."""

from __future__ import annotations

import dataclasses

DEFAULT_PREFIX = "/elasticjob"
"""Default prefix of all jobs; `--rdzv-conf prefix=...` sets another."""


class _Key:
    """A key of a run, or with a final slash a folder of keys, by its name below the root."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, keys: Keys, _owner: type[Keys]) -> str:
        return keys.root + self.name


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run. Their order matters: what every agent watches is one range, and so is what the planner
    watches (rendezvous/cache.py).

    >>> Keys("/elasticjob", "1234-1").member("digits-worker-0")
    '/elasticjob/1234-1/members/digits-worker-0'
    >>> Keys("/elasticjob", "1234-1").plan in Keys("/elasticjob", "1234-1").single
    True
    """

    prefix: str
    run_id: str

    secret = _Key("agents-secret")
    """Sorts before the watched ranges: a secret is read once and never delivered by a watch."""
    spec = _Key("spec")
    plan = _Key("plan")
    stop = _Key("stop")
    outcome = _Key("outcome")
    unready = _Key("members-unready")
    """Sorts into what the planner watches, and not into what every agent does."""
    locations = _Key("members-locations")
    """Sorts as `unready` does."""
    progress = _Key("training-progress")
    transition = _Key("training-transition")
    stragglers = _Key("training-stragglers")

    members = _Key("members/")
    replicas = _Key("members-replicas/")
    """Sorts into what the planner watches, as `unready` does. Every other member watches its own key."""
    ranks = _Key("assigned-ranks/")
    failures = _Key("failures/")
    suspects = _Key("suspects/")

    # These sort after the watched ranges, so they must be read.
    last_joined = _Key("worker-last-joined")
    imports = _Key("worker-imports")
    preflights = _Key("worker-preflight/")
    paces = _Key("worker-pace/")
    evidence_folder = _Key("worker-evidence/")
    hangs = _Key("worker-hangs/")
    """Only the operator reads them."""

    @property
    def root(self) -> str:
        return f"{self.prefix.rstrip('/')}/{self.run_id}/"

    @property
    def single(self) -> tuple[str, ...]:
        """The keys of this run that are not in one of `folders`."""
        return tuple(self.root + name for name in _NAMES if not name.endswith("/"))

    @property
    def folders(self) -> tuple[str, ...]:
        """Prefixes of the other keys of this run, each with its final slash."""
        return tuple(self.root + name for name in _NAMES if name.endswith("/"))

    def pace(self, name: str) -> str:
        return self.paces + name

    def evidence(self, name: str) -> str:
        return self.evidence_folder + name

    def hang(self, name: str) -> str:
        return self.hangs + name

    def preflight(self, name: str) -> str:
        return self.preflights + name

    def member(self, name: str) -> str:
        return self.members + name

    def replica(self, name: str) -> str:
        return self.replicas + name

    def rank(self, attempt: str, name: str) -> str:
        return f"{self.ranks}{attempt}/{name}"

    def failure(self, round_number: int, name: str) -> str:
        return f"{self.failures}{round_number:08d}/{name}"

    def suspicion(self, round_number: int, suspect: str, by: str) -> str:
        return f"{self.suspects}{round_number:08d}/{suspect}/{by}"

    def attempt(self, round_number: int, planner: str) -> str:
        """Sorts by round, so that one range delete removes the ranks of all older plans."""
        return f"{round_number:08d}.{planner}"


_NAMES = tuple(key.name for key in vars(Keys).values() if isinstance(key, _Key))
