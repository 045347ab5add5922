"""Who may connect to whom, given NetworkPolicies: what a network that implements them enforces, as a pure function.

Ingress only, as in https://kubernetes.io/docs/concepts/services-networking/network-policies/. No network of the tests
implements NetworkPolicy, so this is how the tests judge selectors and ports.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

_KNOWN = {"podSelector", "namespaceSelector", "ipBlock"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A pod, or with an address alone something outside the cluster or on a host network."""

    namespace: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    namespace_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    address: str = ""

    @classmethod
    def of(cls, body: Mapping[str, Any], namespace: str = "") -> Endpoint:
        """A pod, or the pods of a template, in a namespace with the labels that every namespace has."""
        metadata = body["metadata"]
        namespace = namespace or metadata["namespace"]
        own = {"kubernetes.io/metadata.name": namespace}
        return cls(namespace=namespace, labels=metadata.get("labels") or {}, namespace_labels=own)


def may_connect(policies: Iterable[Mapping[str, Any]], source: Endpoint, target: Endpoint, port: int) -> bool:
    """Over TCP. A pod that no policy selects accepts everything; one that some select, what any of them allows."""
    selecting = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == target.namespace
        and "Ingress" in policy["spec"].get("policyTypes", ["Ingress"])
        and _selects(policy["spec"]["podSelector"], target.labels)
    ]
    if not selecting:
        return True
    return any(
        _allows_port(rule, port) and _allows_source(rule, source, item["metadata"]["namespace"])
        for item in selecting
        for rule in item["spec"].get("ingress") or []
    )


def _allows_port(rule: Mapping[str, Any], port: int) -> bool:
    ports = rule.get("ports") or []
    assert all(isinstance(item.get("port", 0), int) for item in ports), "named ports are not evaluated"
    return not ports or any(
        item.get("protocol", "TCP") == "TCP"
        and ("port" not in item or item["port"] <= port <= item.get("endPort", item["port"]))
        for item in ports
    )


def _allows_source(rule: Mapping[str, Any], source: Endpoint, namespace: str) -> bool:
    peers = rule.get("from") or []
    return not peers or any(_is(peer, source, namespace) for peer in peers)


def _is(peer: Mapping[str, Any], source: Endpoint, namespace: str) -> bool:
    assert peer, "the API server rejects an empty peer"
    assert peer.keys() <= _KNOWN, peer
    if "ipBlock" in peer:
        block, address = peer["ipBlock"], source.address
        inside = bool(address) and ipaddress.ip_address(address) in ipaddress.ip_network(block["cidr"])
        return inside and not any(
            ipaddress.ip_address(address) in ipaddress.ip_network(item) for item in block.get("except") or []
        )
    if not source.namespace:
        return False
    if "namespaceSelector" in peer:
        return _selects(peer["namespaceSelector"], source.namespace_labels) and _selects(
            peer.get("podSelector", {}), source.labels
        )
    return source.namespace == namespace and _selects(peer["podSelector"], source.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, f"not evaluated: {selector}"
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
