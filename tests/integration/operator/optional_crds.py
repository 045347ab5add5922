"""CRDs that not every cluster has, from the Go modules of those who define them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from hack.cluster.coscheduling import podgroup_crd
from hack.cluster.loopback import ControlPlane
from hack.cluster.programs import source_of_module
from hack.support import eventually

KUEUE = "sigs.k8s.io/kueue@v0.19.2"
VOLCANO = "volcano.sh/volcano@v1.15.0"


def crds_of_kueue(*kinds: str) -> list[Path]:
    """`kinds`: plural."""
    folder = source_of_module(KUEUE) / "config" / "components" / "crd" / "bases"
    return [folder / f"kueue.x-k8s.io_{kind}.yaml" for kind in kinds]


def podgroup_of_volcano() -> Path:
    folder = source_of_module(VOLCANO) / "config" / "crd" / "volcano" / "bases"
    return folder / "scheduling.volcano.sh_podgroups.yaml"


PODGROUP_CRDS = {"Volcano": podgroup_of_volcano, "Coscheduling": podgroup_crd}


@contextlib.contextmanager
def installed(server: ControlPlane, *files: Path) -> Iterator[None]:
    """They go afterwards, with their objects: other tests expect a cluster without them."""
    given = [f"--filename={file}" for file in files]
    server.kubectl("apply", "--server-side", "--force-conflicts", *given)
    try:
        eventually(lambda: _are_established(server, given), what="the CRDs are established")
        yield
    finally:
        server.kubectl("delete", "--ignore-not-found", *given)


def _are_established(server: ControlPlane, given: list[str]) -> bool:
    found = json.loads(server.kubectl("get", "--output=json", *given))
    return all(
        any(
            (condition["type"], condition["status"]) == ("Established", "True")
            for condition in crd["status"].get("conditions") or []
        )
        for crd in found.get("items", [found])
    )
