"""Pure: gang scheduling, so that `minReplicas` worker pods get their nodes together or not at all.

The job's own etcd is never part of the group: worker pods wait for it only once they run.
"""

from __future__ import annotations

from collections.abc import Collection

from elasticjob_api import ElasticJob, GangProvider

from elasticjob_operator.gang.provider import COSCHEDULING, NATIVE, VOLCANO, Provider
from elasticjob_operator.state import Kind

PROVIDERS = {
    GangProvider.NATIVE: NATIVE,
    GangProvider.VOLCANO: VOLCANO,
    GangProvider.COSCHEDULING: COSCHEDULING,
}
"""In the order in which Auto takes them."""
KINDS = {provider.kind for provider in PROVIDERS.values()}
FIXED = {provider.kind for provider in PROVIDERS.values() if provider.is_fixed}
"""Kinds whose spec cannot be changed: another minReplicas takes effect with the next run's group."""


def provider_of(job: ElasticJob, served: Collection[Kind]) -> Provider | None:
    """The one that the job uses. None: it needs no gang, or Auto finds none. `served`: by the API server."""
    gang = job.spec.scheduling.gang
    if gang is None or gang.provider is GangProvider.NONE:
        return None
    if gang.provider is not GangProvider.AUTO:
        return PROVIDERS[gang.provider]
    return next((provider for provider in PROVIDERS.values() if provider.kind in served), None)


def problem_of(job: ElasticJob, served: Collection[Kind]) -> str | None:
    """Why the job cannot have the gang that it names."""
    provider = provider_of(job, served)
    if provider is None or provider.kind in served:
        return None
    return f"the API server does not serve {provider.kind.value} ({provider.api_version})"
