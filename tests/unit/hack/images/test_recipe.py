"""An image is built again when, and only when, something that goes into it has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.images.recipe import INPUTS, make_context

RUNTIMES = ("runtime", "runtime-amd64", "runtime-arm64")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for item in {item for items in INPUTS.values() for item in items}:
        path = root / item
        if item.endswith("src") or item == "examples/digits":
            (path / "package").mkdir(parents=True)
            (path / "package/code.py").write_text("code = 1\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(item)
    return root


def keys(root: Path, base: str = "base") -> dict[str, str]:
    return {name: make_context(name, root.parent / "context" / name, base, root).key for name in INPUTS}


def changed(root: Path, before: dict[str, str], base: str = "base") -> set[str]:
    after = keys(root, base)
    return {name for name in INPUTS if after[name] != before[name]}


@pytest.mark.parametrize(
    ("path", "images"),
    [
        ("trainer-runtime/src/package/code.py", {"operator", *RUNTIMES, "trainer"}),
        ("api/src/package/code.py", {"operator"}),
        ("operator/src/package/code.py", {"operator"}),
        ("examples/digits/package/code.py", {"trainer"}),
        ("constraints.txt", {"frameworks", "trainer"}),
        ("operator/requirements.txt", {"operator"}),
        ("Dockerfile", {"operator", *RUNTIMES, "plain", "frameworks", "trainer"}),
    ],
)
def test_a_change_rebuilds_the_images_that_copy_the_file(checkout: Path, path: str, images: set[str]) -> None:
    before = keys(checkout)
    (checkout / path).write_text("changed\n")
    assert changed(checkout, before) == images


def test_another_base_rebuilds_every_image(checkout: Path) -> None:
    assert changed(checkout, keys(checkout), base="another") == set(INPUTS)


@pytest.mark.parametrize(
    "path",
    [
        "trainer-runtime/src/package/__pycache__/code.cpython-311.pyc",
        "operator/src/x.egg-info/PKG-INFO",
        "examples/digits/.hidden",
        "README.md",
    ],
)
def test_files_that_no_image_copies_rebuild_nothing(checkout: Path, path: str) -> None:
    before = keys(checkout)
    (checkout / path).parent.mkdir(parents=True, exist_ok=True)
    (checkout / path).write_text("left over\n")
    assert changed(checkout, before) == set()
