"""Names of the keys in etcd; the package's docstring lists them."""

from __future__ import annotations

import dataclasses

DEFAULT_PREFIX = "/elasticjob"
"""Default prefix of all jobs; `--rdzv-conf prefix=...` sets another."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run. Their order matters: what every agent watches is one range, and so is what the planner
    watches (rendezvous/cache.py).

    >>> Keys("/elasticjob", "1234-1").member("digits-worker-0")
    '/elasticjob/1234-1/members/digits-worker-0'
    """

    prefix: str
    run_id: str

    @property
    def root(self) -> str:
        return f"{self.prefix.rstrip('/')}/{self.run_id}/"

    @property
    def spec(self) -> str:
        return self.root + "spec"

    @property
    def plan(self) -> str:
        return self.root + "plan"

    @property
    def unready(self) -> str:
        """Sorts into what the planner watches, and not into what every agent does."""
        return self.root + "members-unready"

    @property
    def locations(self) -> str:
        """Sorts as `unready` does."""
        return self.root + "members-locations"

    @property
    def stop(self) -> str:
        return self.root + "stop"

    @property
    def outcome(self) -> str:
        return self.root + "outcome"

    @property
    def progress(self) -> str:
        return self.root + "training-progress"

    @property
    def secret(self) -> str:
        """Sorts before the watched ranges: a secret is read once and never delivered by a watch."""
        return self.root + "agents-secret"

    @property
    def transition(self) -> str:
        return self.root + "training-transition"

    @property
    def stragglers(self) -> str:
        return self.root + "training-stragglers"

    @property
    def last_joined(self) -> str:
        """Sorts after the watched ranges, like `imports`."""
        return self.root + "worker-last-joined"

    @property
    def imports(self) -> str:
        """Sorts after the watched ranges, so it must be read."""
        return self.root + "worker-imports"

    @property
    def single(self) -> tuple[str, ...]:
        """The keys of this run that are not in one of `folders`."""
        return (
            self.secret, self.spec, self.plan, self.stop, self.outcome, self.progress, self.transition,
            self.stragglers, self.unready, self.locations, self.last_joined, self.imports,
        )  # fmt: skip

    @property
    def folders(self) -> tuple[str, ...]:
        """Prefixes of the other keys of this run, each with its final slash."""
        return (
            self.members, self.replicas, self.ranks, self.failures, self.suspects, self.preflights, self.paces,
            self.hangs, self.evidence_folder,
        )  # fmt: skip

    @property
    def members(self) -> str:
        return self.root + "members/"

    @property
    def replicas(self) -> str:
        """Sorts into what the planner watches, as `unready` does. Every other member watches its own key."""
        return self.root + "members-replicas/"

    @property
    def ranks(self) -> str:
        return self.root + "assigned-ranks/"

    @property
    def failures(self) -> str:
        return self.root + "failures/"

    @property
    def suspects(self) -> str:
        return self.root + "suspects/"

    @property
    def preflights(self) -> str:
        """Sorts after the watched ranges, like `imports`."""
        return self.root + "worker-preflight/"

    @property
    def paces(self) -> str:
        """Sorts after the watched ranges, like `imports`."""
        return self.root + "worker-pace/"

    def pace(self, name: str) -> str:
        return self.paces + name

    @property
    def hangs(self) -> str:
        """Sorts after the watched ranges, like `imports`: only the operator reads them."""
        return self.root + "worker-hangs/"

    @property
    def evidence_folder(self) -> str:
        """Sorts after the watched ranges, like `imports`."""
        return self.root + "worker-evidence/"

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
