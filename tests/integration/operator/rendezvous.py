"""The agents of a job, as the test plays them in etcd."""

from __future__ import annotations

import time
from typing import Any

from elasticjob_runtime.contract import (
    DEFAULT_PREFIX,
    FailureValue,
    Keys,
    LocationsValue,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    ProgressValue,
    ReplicaValue,
    SpecValue,
    Straggler,
    StragglersValue,
    UnreadyValue,
)
from elasticjob_runtime.etcd import Delete, EtcdClient, Get, KeyRange


class Agents:
    def __init__(self, endpoint: str, run_id: str) -> None:
        self._store = EtcdClient(endpoint)
        self._keys = Keys(DEFAULT_PREFIX, run_id)

    def spec(self) -> SpecValue | None:
        """What the operator tells."""
        found = self._store.get(self._keys.spec)
        return SpecValue.from_json(found.value) if found else None

    def locations(self) -> dict[str, str]:
        """Where the operator says that the members are."""
        found = self._store.get(self._keys.locations)
        return LocationsValue.from_json(found.value).locations if found else {}

    def lose_all_keys(self) -> None:
        self._store.txn((), [Delete(KeyRange.prefix(self._keys.root))])

    def plan(
        self,
        round_number: int,
        *,
        size: int,
        restart_count: int = 0,
        reason: PlanReason = PlanReason.START,
        caused_at: float = 0.0,
    ) -> None:
        value = PlanValue(
            round=round_number,
            attempt=self._keys.attempt(round_number, "test"),
            size=size,
            world_size=size,
            nproc=1,
            master_addr="127.0.0.1",
            master_port=1,
            leader="x",
            restart_count=restart_count,
            reason=reason,
            created_at=time.time(),
            caused_at=caused_at,
        )
        self._store.put(self._keys.plan, value.to_json())

    def progress(self, step: int, round_number: int = 1, **fields: Any) -> None:
        self._store.put(
            self._keys.progress,
            ProgressValue(step=step, round=round_number, updated_at=time.time(), **fields).to_json(),
        )

    def unready(self, *members: str) -> None:
        value = UnreadyValue(members=list(members), since=time.time() - 100)
        self._store.put(self._keys.unready, value.to_json())

    def stragglers(self, round_number: int, member: str = "", *signs: str) -> None:
        """No member: none is slow any more."""
        slow = [Straggler(rank=1, member=member, text="own time 50 ms", signs=list(signs))] if member else []
        self._store.put(self._keys.stragglers, StragglersValue(round=round_number, stragglers=slow).to_json())

    def fail(self, round_number: int, member: str, message: str) -> FailureValue:
        failure = failure_of(round_number, member, message)
        self._store.put(self._keys.failure(round_number, member), failure.to_json())
        return failure

    def outcome(
        self, state: OutcomeState, reason: str, message: str = "", failure: dict[str, Any] | None = None
    ) -> None:
        self._store.put(
            self._keys.outcome, OutcomeValue(state=state, reason=reason, message=message, failure=failure).to_json()
        )

    def put_together(self, index: int, *members: str) -> None:
        """As a replica."""
        for ordinal, member in enumerate(members):
            value = ReplicaValue(index=index, world=index + 1, incarnation=member, ordinal=ordinal, members=members)
            self._store.put(self._keys.replicas + member, value.to_json())

    def register(self, member: str) -> None:
        """A member key without a lease, so that only the operator can delete it."""
        self._store.put(self._keys.member(member), "{}")

    def members(self) -> list[str]:
        found = self._store.range(Get(KeyRange.prefix(self._keys.members)))
        return [kv.key.rpartition("/")[2] for kv in found.kvs]

    def keys_left(self) -> list[str]:
        found = self._store.range(Get(KeyRange.prefix(self._keys.root), keys_only=True))
        return [kv.key for kv in found.kvs]

    def close(self) -> None:
        self._store.close()


def failure_of(round_number: int, member: str, message: str) -> FailureValue:
    return FailureValue(
        member=member,
        round=round_number,
        rank=1,
        local_rank=0,
        exit_code=1,
        reason="ApplicationError",
        message=message,
        traceback=f"Traceback (most recent call last):\n  File train.py\n{message}",
        time=time.time(),
    )
