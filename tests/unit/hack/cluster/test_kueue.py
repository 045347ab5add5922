"""Which Kueue the test cluster gets."""

from __future__ import annotations

import pytest

from hack.cluster import ClusterError
from hack.cluster.kueue import FOLDER, required_version


@pytest.mark.parametrize(
    "go_mod",
    [
        "require sigs.k8s.io/kueue v0.19.2\n",
        "require (\n\tsigs.k8s.io/jobset v0.12.0\n\tsigs.k8s.io/kueue v0.19.2\n)\n",
        "tool sigs.k8s.io/kueue/cmd/kueue\nrequire (\n\tsigs.k8s.io/kueue/more v1.0.0\n\tsigs.k8s.io/kueue v0.19.2\n)",
    ],
)
def test_the_version_is_the_one_that_go_mod_requires(go_mod: str) -> None:
    assert required_version(go_mod) == "v0.19.2"


def test_our_go_mod_requires_a_release_of_kueue() -> None:
    assert required_version((FOLDER / "go.mod").read_text()).count(".") == 2


def test_a_go_mod_without_kueue_is_an_error_that_names_it() -> None:
    with pytest.raises(ClusterError, match=r"sigs\.k8s\.io/kueue"):
        required_version("module example\n\ntool sigs.k8s.io/kueue/cmd/kueue\n")
