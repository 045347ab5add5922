"""The version of a release: one for all artifacts, in the file VERSION, and the files that have to repeat it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = "VERSION"
CHANGELOG = "CHANGELOG.md"
_UNRELEASED = "## Unreleased"

_VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
PLACES: Mapping[str, tuple[str, ...]] = {
    "api/pyproject.toml": (rf'^version = "({_VERSION})"$', rf'^    "elasticjob-runtime==({_VERSION})",$'),
    "client/pyproject.toml": (rf'^version = "({_VERSION})"$', rf'^    "elasticjob-api==({_VERSION})",$'),
    "operator/pyproject.toml": (
        rf'^version = "({_VERSION})"$',
        rf'^    "elasticjob-api==({_VERSION})",$',
        rf'^    "elasticjob-runtime==({_VERSION})",$',
    ),
    "trainer-runtime/pyproject.toml": (rf'^version = "({_VERSION})"$',),
    "charts/elasticjob/Chart.yaml": (rf"^version: ({_VERSION})$", rf"^appVersion: ({_VERSION})$"),
}
"""File -> patterns whose group is the version."""


class VersionError(Exception):
    """A version is malformed, or a file that has to repeat it does not."""


def read(root: Path = ROOT) -> str:
    """Raises VersionError."""
    return _checked((root / FILE).read_text(encoding="utf-8").strip())


def check(root: Path = ROOT) -> None:
    """Raises VersionError if a file names another version than VERSION, or none."""
    version = read(root)
    for name, patterns in PLACES.items():
        text = (root / name).read_text(encoding="utf-8")
        for pattern in patterns:
            found = re.search(pattern, text, re.MULTILINE)
            if found is None or found[1] != version:
                said = "no version" if found is None else found[1]
                raise VersionError(
                    f"{name} names {said}, VERSION says {version}: run `python -m hack.release version {version}`"
                )


def write(version: str, today: datetime.date, root: Path = ROOT) -> None:
    """Sets the version everywhere, and turns the changelog's unreleased section into this version's.

    Raises VersionError, and then changes nothing.
    """
    _checked(version)
    changed = {name: _replaced(name, patterns, version, root) for name, patterns in PLACES.items()}
    changed[CHANGELOG] = _cut((root / CHANGELOG).read_text(encoding="utf-8"), version, today)
    for name, text in changed.items():
        (root / name).write_text(text, encoding="utf-8")
    (root / FILE).write_text(f"{version}\n", encoding="utf-8")


def notes(root: Path = ROOT) -> str:
    """What the changelog says of the current version. Raises VersionError if it has no section for it."""
    version = read(root)
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(version)} .*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise VersionError(f"{CHANGELOG} has no section for {version}: run `python -m hack.release version {version}`")
    return found[1].strip()


def _cut(changelog: str, version: str, today: datetime.date) -> str:
    """The changelog with its unreleased section under the name of `version`, and an empty one above it."""
    if changelog.count(f"{_UNRELEASED}\n") != 1:
        raise VersionError(f"{CHANGELOG} must have one section {_UNRELEASED!r}")
    if f"\n## {version} " in changelog:
        raise VersionError(f"{CHANGELOG} has a section for {version} already")
    return changelog.replace(f"{_UNRELEASED}\n", f"{_UNRELEASED}\n\n## {version} ({today.isoformat()})\n")


def _replaced(name: str, patterns: tuple[str, ...], version: str, root: Path) -> str:
    text = (root / name).read_text(encoding="utf-8")
    for pattern in patterns:
        text, count = re.subn(
            pattern, lambda match: match[0].replace(match[1], version), text, count=1, flags=re.MULTILINE
        )
        if not count:
            raise VersionError(f"{name} has no line like {pattern}")
    return text


def _checked(version: str) -> str:
    if re.fullmatch(_VERSION, version) is None:
        raise VersionError(f"{version!r} is not a version: write one such as 0.2.0 or 0.2.0rc1")
    return version
