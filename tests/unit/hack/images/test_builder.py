"""Images are built with an available builder, and an unknown one is rejected."""

from __future__ import annotations

import pytest

from hack import images
from hack.images import StepError, builder
from hack.images.buildah import Buildah
from hack.images.docker import Docker


@pytest.mark.parametrize(
    ("environment", "engine", "root", "expected"),
    [
        ({}, True, True, Buildah),  # the own cluster: no registry is needed
        ({"CLUSTER": "own"}, True, False, Docker),  # buildah needs root here
        ({"CLUSTER": "kind"}, True, True, Docker),
        ({"CLUSTER": "current"}, False, True, Buildah),
        ({"CLUSTER": "kind", "IMAGE_BUILDER": "buildah"}, True, True, Buildah),
        ({"IMAGE_BUILDER": "docker"}, False, True, Docker),
    ],
)
def test_the_builder_that_fits_the_cluster_is_used(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], engine: bool, root: bool, expected: type
) -> None:
    monkeypatch.setattr(images, "docker_runs", lambda: engine)
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    assert isinstance(builder(environment), expected)


def test_an_unknown_builder_is_rejected() -> None:
    with pytest.raises(StepError, match="buildah or docker"):
        builder({"IMAGE_BUILDER": "kaniko"})
