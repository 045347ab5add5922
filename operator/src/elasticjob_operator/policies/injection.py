"""How the runtime gets into the worker pods of a job: `spec.workers.runtime.inject`. See docs/design/0015-injection.md.

inject          condition                                                     way
any             the operator has no runtime image, or pods of this run
                were created without injection                                none
None                                                                          none
ImageVolume                                                                   image volume
InitContainer                                                                 init container
Auto            torchrun with a rendezvous of its own                         none
Auto            the API server rejected the image volume                      init container
Auto            every node can mount an image                                 image volume
Auto            otherwise, or nodes may not be read                           init container
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from elasticjob_api import REMEDY, ElasticJob, Inject, Reason

from elasticjob_operator.node_state import NodeCounts
from elasticjob_operator.policies.condition_updates import Cause, cause
from elasticjob_operator.resources.injection import InjectionWay
from elasticjob_operator.resources.template import InvalidTemplateError, training_container
from elasticjob_operator.state import Pod

_KUBELET = (1, 35)
"""The first Kubernetes whose kubelets mount images without being told to."""
_CONTAINER_RUNTIMES = {"containerd": (2, 1), "cri-o": (1, 31)}
"""The first versions that mount images."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    way: InjectionWay
    problem: Cause | None = None
    """Why the requested way is not possible."""


def mounts_images(kubelet: str, container_runtime: str) -> bool:
    """Whether a node can mount image volumes, from the versions in its `status.nodeInfo`.

    >>> mounts_images("v1.36.3", "containerd://2.3.7"), mounts_images("v1.34.1", "containerd://2.1.0")
    (True, False)
    """
    name, _, version = container_runtime.partition("://")
    oldest = _CONTAINER_RUNTIMES.get(name)
    return oldest is not None and _version(version) >= oldest and _version(kubelet) >= _KUBELET


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def injection(
    job: ElasticJob, *, image: str, nodes: NodeCounts | None, rejected: bool, pods: Iterable[Pod]
) -> Injection:
    """`image`: of the runtime, empty: the operator has none; `nodes`: None: they may not be read; `rejected`: the API
    server rejected a pod of this job with an image volume; `pods`: worker pods of the current run."""
    wanted = job.spec.workers.runtime.inject
    if wanted is Inject.NONE or any(not pod.injected for pod in pods):
        return Injection(way=InjectionWay.NONE)
    if not image:
        detail = _NO_IMAGE.format(inject=wanted)
        problem = cause(Reason.RUNTIME_UNAVAILABLE, object="the worker pods", detail=detail)
        return Injection(way=InjectionWay.NONE, problem=None if wanted is Inject.AUTO else problem)
    if wanted is Inject.IMAGE_VOLUME:
        return Injection(way=InjectionWay.IMAGE_VOLUME)
    if wanted is Inject.INIT_CONTAINER:
        return Injection(way=InjectionWay.INIT_CONTAINER)
    if not job.has_plans and _program(job) == "torchrun":
        return Injection(way=InjectionWay.NONE)
    everywhere = nodes is not None and 0 < nodes.total == nodes.mounting_images
    return Injection(way=InjectionWay.IMAGE_VOLUME if everywhere and not rejected else InjectionWay.INIT_CONTAINER)


_NO_IMAGE = (
    f"spec.workers.runtime.inject is {{inject}}, but the operator has no runtime image.{REMEDY}ask your cluster "
    "administrator to set the chart's runtime.repository, or set inject to None if the image of the worker pods "
    "contains the runtime."
)


def _program(job: ElasticJob) -> str:
    """The name of the program that the training container runs; empty: not given or not readable."""
    try:
        command = training_container(job, job.spec.workers.template.get("spec") or {}).get("command")
    except InvalidTemplateError:
        return ""
    return str(command[0]).rpartition("/")[2] if isinstance(command, list) and command else ""


def is_about_volumes(rejection: str, *, invalid: bool) -> bool:
    """Whether the API server rejected a pod with an image volume possibly because of that volume: as invalid (the
    feature is off), or by a policy that says so. A quota does not."""
    return invalid or "volume" in rejection.lower()
