"""The NetworkPolicies of a job: who may connect to its worker pods and to its etcd. Egress is not limited.

Policies add up, so a NetworkPolicy of the user's can allow more. A cluster whose network does not implement them
ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_api import ElasticJob
from elasticjob_runtime.contract import DEFAULT_ETCD_PORT

from elasticjob_operator import names
from elasticjob_operator.resources.etcd_members import PEER_PORT
from elasticjob_operator.resources.metadata import owned, selector_labels

Peers = Sequence[Mapping[str, Any]]
"""As `from` of a rule."""

_SELECTORS = frozenset({"matchLabels", "matchExpressions", "except"})
"""Fields that the API server drops if they are empty."""


def worker_network_policy(job: ElasticJob, *, metrics_port: int, metrics_from: Peers) -> dict[str, Any] | None:
    """Only the job's own worker pods may connect to a worker pod, to any port: agents and worker processes choose
    theirs when they start. `metrics_port`: of the agents' metrics, open to `metrics_from`; empty: to no one else, as
    policies add up, and this one would open a namespace that denies everything.

    None: the pods are on the host network, where no NetworkPolicy applies.
    """
    if _on_host_network(job):
        return None
    return _policy(
        job,
        names.workers_policy(job.name),
        names.COMPONENT_WORKER,
        [_rule([_pods(job, names.COMPONENT_WORKER)]), *([_rule(metrics_from, metrics_port)] if metrics_from else [])],
    )


def etcd_network_policy(job: ElasticJob, *, operator: Peers) -> dict[str, Any]:
    """Only the job's worker pods and `operator` may connect to the job's own etcd, and only its members to each other.
    Probes come from the pod's node, which no NetworkPolicy keeps out.

    Connections of pods on the host network come from their node's address, which no selector matches: such a job's etcd
    is open to all: only TLS protects it.
    """
    clients = [] if _on_host_network(job) else [_pods(job, names.COMPONENT_WORKER), *operator]
    return _policy(
        job,
        names.etcd_name(job.name),
        names.COMPONENT_ETCD,
        [
            _rule(clients, DEFAULT_ETCD_PORT),
            _rule([_pods(job, names.COMPONENT_ETCD)], PEER_PORT),
        ],
    )


def _policy(job: ElasticJob, name: str, component: str, ingress: list[dict[str, Any]]) -> dict[str, Any]:
    spec = {**_pods(job, component), "policyTypes": ["Ingress"], "ingress": ingress}
    return owned(job, "networking.k8s.io/v1", "NetworkPolicy", name, component, spec=spec)


def _rule(peers: Peers, *ports: int) -> dict[str, Any]:
    """No peers: all; no ports: all."""
    rule: dict[str, Any] = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]} if ports else {}
    return {**rule, "from": [_normalized(peer) for peer in peers]} if peers else rule


def _pods(job: ElasticJob, component: str) -> dict[str, Any]:
    """In the job's namespace."""
    return {"podSelector": {"matchLabels": selector_labels(job, component)}}


def _normalized(peer: Any) -> Any:
    """As the API server stores it, so that it does not look changed later."""
    if not isinstance(peer, Mapping):
        return peer
    return {key: _normalized(value) for key, value in peer.items() if value or key not in _SELECTORS}


def _on_host_network(job: ElasticJob) -> bool:
    return bool((job.spec.workers.template.get("spec") or {}).get("hostNetwork"))
