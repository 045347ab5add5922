"""Whether a queue of Kueue can admit a job. Pure."""

from __future__ import annotations

import contextlib
import decimal
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

_SUFFIXES = {
    "n": decimal.Decimal("1e-9"),
    "u": decimal.Decimal("1e-6"),
    "m": decimal.Decimal("1e-3"),
    "": decimal.Decimal(1),
    **{letter: decimal.Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": decimal.Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")
_ETCD = {"cpu": "50m", "memory": "64Mi"}
"""What the job's own etcd asks for by default."""


def quantity(text: object) -> decimal.Decimal:
    """A quantity of Kubernetes.

    >>> quantity("250m"), quantity("2Gi"), quantity(3)
    (Decimal('0.250'), Decimal('2147483648'), Decimal('3'))

    Raises ValueError.
    """
    found = _QUANTITY.fullmatch(str(text).strip())
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {text!r}")
    return decimal.Decimal(found[1]) * _SUFFIXES[found[2]]


def has_default_etcd(operators: Iterable[Json]) -> bool:
    """Whether jobs that name no endpoint share an etcd, or the etcd tiers. `operators`: their Deployments."""
    environment = {
        variable.get("name"): variable.get("value")
        for deployment in operators
        for container in deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or ()
        for variable in container.get("env") or ()
    }
    try:
        tiers = json.loads(environment.get("ELASTICJOB_ETCD_TIERS") or "{}").get("tiers", ())
    except ValueError:
        tiers = ()
    return bool(environment.get("ELASTICJOB_RENDEZVOUS_ENDPOINT")) or any(tier.get("open", True) for tier in tiers)


def requested(body: Json, least: int, *, shared_etcd: bool = False) -> dict[str, decimal.Decimal]:
    """What `least` worker pods of a job and its own etcd ask for. Values that are no quantities are left out.
    `shared_etcd`: jobs that name no endpoint share one."""
    workers = body["spec"]["workers"]
    spec = (workers.get("template") or {}).get("spec") or {}
    total: dict[str, decimal.Decimal] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            _add(total, name, amount, least)
    rendezvous = body["spec"].get("rendezvous") or {}
    shares = shared_etcd and rendezvous.get("type", "Auto") == "Auto"
    if not rendezvous.get("endpoint") and rendezvous.get("backend", "etcd-v3") == "etcd-v3" and not shares:
        etcd = rendezvous.get("etcd") or {}
        asked = (etcd.get("resources") or {}).get("requests") or _ETCD
        for name, amount in asked.items():
            _add(total, name, amount, int(etcd.get("members") or 1))
    return total


def _add(total: dict[str, decimal.Decimal], name: str, amount: object, times: int) -> None:
    with contextlib.suppress(ValueError):
        total[name] = total.get(name, decimal.Decimal(0)) + quantity(amount) * times


def obstacles_of_queue(wanted: Mapping[str, decimal.Decimal], cluster_queue: Json) -> Iterator[tuple[str, str]]:
    """(what is wrong, remedy) of a job that asks for so much, in that ClusterQueue. What can be borrowed counts."""
    spec, name = cluster_queue.get("spec") or {}, cluster_queue["metadata"]["name"]
    quotas: dict[str, decimal.Decimal] = {}
    unlimited: set[str] = set()
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                key = resource["name"]
                most = quantity(resource.get("nominalQuota", 0)) + quantity(resource.get("borrowingLimit", 0))
                quotas[key] = max(most, quotas.get(key, decimal.Decimal(0)))
                if spec.get("cohortName") and "borrowingLimit" not in resource:
                    unlimited.add(key)
    missing = sorted(wanted.keys() - quotas.keys())
    if missing:
        yield (
            f"ClusterQueue {name} covers no {' and no '.join(missing)}, which the job's pods ask for: it waits "
            "forever.",
            "Ask your cluster administrator to add it to coveredResources.",
        )
    for key in sorted(wanted.keys() & quotas.keys() - unlimited):
        if wanted[key] > quotas[key]:
            yield (
                f"minReplicas worker pods ask for {wanted[key].normalize():f} {key}, and no flavor of ClusterQueue "
                f"{name} has more than {quotas[key].normalize():f}: the job waits forever.",
                "Lower minReplicas or the requests of a worker pod, or use another queue.",
            )
    if spec.get("stopPolicy", "None") != "None":
        yield f"ClusterQueue {name} is stopped ({spec['stopPolicy']}).", "Ask your cluster administrator."
