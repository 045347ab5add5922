"""A pod template may set every variable except those that the operator and the agent set: on a real API server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_runtime.contract import Env, PlanReason, PlanValue
from elasticjob_runtime.workers.environment import GroupSpec, worker_environment

from tests.integration.manifests import TRAINER, Cluster, api, changed, empty
from tests.unit.operator.builders import make_job

__all__ = ["api", "empty"]

ROOT = Path(__file__).parents[2]
OF_THE_OPERATOR = {f"ELASTICJOB_{name}" for name in ("RESYNC_SECONDS", "NODE_SETTLE_SECONDS")}
"""In the docs, but read by the operator, not in a pod."""


def documented() -> set[str]:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/design/*.md"), ROOT / "README.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return (
        set(re.findall(r"\b(?:PET|TORCHELASTIC|ELASTICJOB|TORCH|NCCL|OMP)_[A-Z][A-Z_]*[A-Z]\b", text)) - OF_THE_OPERATOR
    )


PROMISED = documented() | {
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "ELASTICJOB_METRICS_PORT",
    "ELASTICJOB_TERMINATION_LOG",
    "PET_START_METHOD",
    "PET_RDZV_CONF",
    "PET_LOG_DIR",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
}


def set_by_operator() -> set[str]:
    jobs = [
        make_job(spec=spec) for spec in ({"checkpoint": {"directory": "/ckpt"}}, {"rendezvous": {"backend": "c10d"}})
    ]
    pods = [worker_pod(job, index=0, run=1, endpoint="x:1") for job in jobs]
    return {variable["name"] for pod in pods for variable in pod["spec"]["containers"][0]["env"]}


def set_by_agent() -> set[str]:
    group = GroupSpec(run_id="r", role="default", nproc=1, max_restarts=0)
    plan = PlanValue(
        round=1,
        attempt="a",
        size=1,
        world_size=1,
        master_addr="h",
        master_port=1,
        leader="l",
        nproc=1,
        restart_count=0,
        reason=PlanReason.START,
    )
    before = dict.fromkeys(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "USE_LIBUV", "OMP_NUM_THREADS"), "kept")
    after = worker_environment(before, group, plan, 0, 0, error_file="e", agent_socket="s")
    return {name for name in after if before.get(name) != after[name]}


def test_exactly_the_variables_that_elasticjob_sets_are_reserved() -> None:
    # PET_RDZV_CONF is merged with the user's, and users may set torch's own switch.
    assert set(Env.SET_BY_OPERATOR) == set_by_operator() - {Env.RDZV_CONF, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
    assert set(Env.SET_BY_AGENT) == set_by_agent()


def test_every_documented_variable_can_be_set_or_is_reserved(empty: Cluster) -> None:
    settable = sorted(PROMISED - set(Env.RESERVED))
    assert "ELASTICJOB_METRICS_PORT" in settable
    variables = {f"{TRAINER}.env.{number}": {"name": name, "value": "1"} for number, name in enumerate(settable, 1)}
    empty.try_to_create(changed(variables))


@pytest.mark.parametrize("name", Env.RESERVED)
def test_a_reserved_variable_is_rejected_by_name(empty: Cluster, name: str) -> None:
    message = empty.rejection(changed({f"{TRAINER}.env.1": {"name": name, "value": "1"}}))
    assert f'sets ["{name}"], which ElasticJob sets itself: remove it' in message
