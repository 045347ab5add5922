"""How many training processes a plan has.

The agents of elasticrun count them. Those of torchrun on our etcd do not, as torch's own tell each other how many each
starts: there it is what the job gives them as --nproc-per-node, where that is a number.
"""

from __future__ import annotations

import dataclasses

from elasticjob_runtime.contract import PlanValue

from elasticjob_operator.api import ElasticJob


def counted(job: ElasticJob, plan: PlanValue | None) -> PlanValue | None:
    """`plan` with its world size, where that can be known; else with 0."""
    procs = job.spec.workers.procs_per_worker
    if plan is None or plan.nproc or not isinstance(procs, int):
        return plan
    return dataclasses.replace(plan, world_size=plan.size * procs)
