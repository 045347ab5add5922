"""A pod template may set every variable except those that the operator and the agent set: on a real API server."""

from __future__ import annotations

import re
from pathlib import Path

from elasticjob_runtime.contract import Env

from tests.integration.manifests import TRAINER, Case, Cluster, api, changed, empty

__all__ = ["api", "empty"]

ROOT = Path(__file__).parents[2]
OF_THE_OPERATOR = {f"ELASTICJOB_{name}" for name in ("RESYNC_SECONDS", "NODE_SETTLE_SECONDS")}
"""In the docs, but read by the operator, not in a pod."""
PAGES = (
    "docs/guides/command-line.md",
    "docs/guides/operations.md",
    "docs/guides/queueing.md",
    "docs/guides/torchrun.md",
    "docs/reference/elasticrun.md",
    "docs/guides/images.md",
)
"""Pages that name variables for containers."""


def documented() -> set[str]:
    pages = [*ROOT.glob("docs/design/*.md"), *(ROOT / page for page in PAGES), ROOT / "README.md"]
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


def test_every_documented_variable_can_be_set_or_is_reserved(empty: Cluster) -> None:
    settable = sorted(PROMISED - set(Env.RESERVED))
    assert "ELASTICJOB_METRICS_PORT" in settable
    variables = {f"{TRAINER}.env.{number}": {"name": name, "value": "1"} for number, name in enumerate(settable, 1)}
    empty.try_to_create(changed(variables))


def test_a_reserved_variable_is_rejected_by_name(empty: Cluster) -> None:
    variables = {f"{TRAINER}.env.{at}": {"name": name, "value": "1"} for at, name in enumerate(Env.RESERVED, 1)}
    names = ", ".join(f'"{name}"' for name in Env.RESERVED)
    empty.judges(Case(variables, (f"sets [{names}], which ElasticJob sets itself: remove it",)))
