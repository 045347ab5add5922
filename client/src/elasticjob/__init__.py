"""Command line and Python client for ElasticJobs.

from elasticjob import ElasticJobClient

client = ElasticJobClient()
job = client.submit("bert", image="my-company/train:1.4", command="python train.py", workers=(2, 4))
job.wait()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticjob.decisions.job_request import JobOptions
    from elasticjob.errors import (
        AlreadyExistsError,
        ElasticJobError,
        ForbiddenError,
        InvalidManifestError,
        JobDeletedError,
        JobFailedError,
        NotFoundError,
        UnreachableError,
        UsageError,
        WaitTimeoutError,
    )
    from elasticjob.sdk.client import ElasticJobClient
    from elasticjob.sdk.function import train
    from elasticjob.sdk.job import Job, JobList

__all__ = [
    "AlreadyExistsError",
    "ElasticJobClient",
    "ElasticJobError",
    "ForbiddenError",
    "InvalidManifestError",
    "Job",
    "JobDeletedError",
    "JobFailedError",
    "JobList",
    "JobOptions",
    "NotFoundError",
    "UnreachableError",
    "UsageError",
    "WaitTimeoutError",
    "train",
]

_MODULES = {
    "ElasticJobClient": "elasticjob.sdk.client",
    "Job": "elasticjob.sdk.job",
    "JobList": "elasticjob.sdk.job",
    "JobOptions": "elasticjob.decisions.job_request",
    "train": "elasticjob.sdk.function",
}
"""Imported when first used: the command line starts faster without them."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES.get(name, "elasticjob.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
