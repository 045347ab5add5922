"""`python -m hack.requirements`: writes the requirements files with which the operator's image and a release are built,
with a hash for every file that pip may install.

Versions come from constraints.txt; what depends on what, from the packages in .venv; hashes, from the package index.
`python -m hack.checks` compares the files with the first two, without the index.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CONSTRAINTS = "constraints.txt"
MACHINES = ("x86_64", "aarch64")
NEWEST_GLIBC = 41
"""2.41 is Debian 13's: of several wheels, pip takes the one for the newest glibc that the system has."""
_OURS = ("elasticjob", "elasticjob-api", "elasticjob-operator", "elasticjob-runtime")
_HEAD = """\
# Written by `make requirements`, for {what}. Do not edit.
# pip install --require-hashes --only-binary :all: -r {path}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lock:
    """A requirements file: packages, and everything that they need."""

    path: str
    what: str
    python: str
    """Version of the Python that installs it."""
    roots: Mapping[str, str]
    """pyproject.toml -> `dependencies`, or the name of a dependency group."""


LOCKS = (
    Lock(
        path="operator/requirements.txt",
        what="the operator's image",
        python="3.13",
        roots={"api/pyproject.toml": "dependencies", "operator/pyproject.toml": "dependencies"},
    ),
    Lock(
        path="hack/release/requirements.txt",
        what="`make release`",
        python="3.11",
        roots={"pyproject.toml": "release"},
    ),
)


class RequirementsError(Exception):
    """A package has no version in constraints.txt, or no file in the index."""


def pinned(text: str) -> dict[str, str]:
    """Name -> version, from a file with lines `name==version`.

    >>> pinned("PyYAML==6.0.3\\nkopf==1.45.2 \\\\\\n    --hash=sha256:aa\\n")
    {'pyyaml': '6.0.3', 'kopf': '1.45.2'}
    """
    found = re.findall(r"(?m)^([A-Za-z0-9._-]+)==(\S+)", text)
    return {canonicalize_name(name): version for name, version in found}


def needed(lock: Lock, root: Path = ROOT) -> set[str]:
    """Names of all packages of a file. Raises RequirementsError if one is not installed here."""
    left = [(Requirement(item), "") for item in _direct(lock, root)]
    found: dict[str, set[str]] = {}
    while left:
        requirement, extra = left.pop()
        name = canonicalize_name(requirement.name)
        if name in _OURS or not _applies(requirement, lock.python, extra):
            continue
        extras = {"", *requirement.extras}
        new = extras - found.setdefault(name, set())
        found[name] |= extras
        left += [(Requirement(requirement), extra) for extra in new for requirement in _requires(name)]
    return set(found)


def problems(lock: Lock, root: Path = ROOT) -> Iterator[str]:
    """Where the file differs from constraints.txt and from what the packages need, as far as is known offline."""
    text = (root / lock.path).read_text(encoding="utf-8") if (root / lock.path).exists() else ""
    there, wanted = pinned(text), needed(lock, root)
    constraints = pinned((root / CONSTRAINTS).read_text(encoding="utf-8"))
    for name in sorted(wanted - there.keys()):
        yield f"{name} is missing"
    for name in sorted(there.keys() - wanted):
        yield f"{name} is not needed"
    for name in sorted(wanted & there.keys()):
        if there[name] != constraints.get(name):
            yield f"{name}=={there[name]}, but {CONSTRAINTS} has {constraints.get(name, 'no version')}"
    for name in sorted(there.keys() - _hashed(text)):
        yield f"{name} has no hash"


def written(lock: Lock, hashes: Mapping[str, Sequence[str]], versions: Mapping[str, str]) -> str:
    """The content of the file."""
    lines = [
        f"{name}=={versions[name]}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes[name])
        for name in sorted(hashes)
    ]
    return _HEAD.format(what=lock.what, path=lock.path) + "\n".join(lines) + "\n"


def write(lock: Lock, root: Path = ROOT) -> None:
    """Raises RequirementsError."""
    constraints = pinned((root / CONSTRAINTS).read_text(encoding="utf-8"))
    wanted = needed(lock, root)
    if unpinned := sorted(wanted - constraints.keys()):
        raise RequirementsError(f"{CONSTRAINTS} has no version of {', '.join(unpinned)}: add it")
    versions = {name: constraints[name] for name in wanted}
    hashes: dict[str, set[str]] = {name: set() for name in wanted}
    for machine in MACHINES:
        for name, digest in _from_index(versions, lock.python, machine):
            hashes[name].add(digest)
    content = written(lock, {name: sorted(item) for name, item in hashes.items()}, versions)
    (root / lock.path).write_text(content, encoding="utf-8")


def _direct(lock: Lock, root: Path) -> Iterator[str]:
    for path, group in lock.roots.items():
        content = tomllib.loads((root / path).read_text(encoding="utf-8"))
        yield from content["project"][group] if "project" in content else content["dependency-groups"][group]


def _requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        raise RequirementsError(f"{name} is not installed here: run make setup") from None


def _applies(requirement: Requirement, python: str, extra: str) -> bool:
    """On any of the machines."""
    if requirement.marker is None:
        return True
    target = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux", "extra": extra}
    return any(requirement.marker.evaluate({**target, "platform_machine": machine}) for machine in MACHINES)


def _hashed(text: str) -> set[str]:
    return {canonicalize_name(name) for name in re.findall(r"(?m)^([A-Za-z0-9._-]+)==\S+ \\\n +--hash=", text)}


def _from_index(versions: Mapping[str, str], python: str, machine: str) -> Iterator[tuple[str, str]]:
    """(name, SHA-256) of the wheels that pip would install on that machine."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    command = [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report=-", "--no-deps"),
        *("--ignore-installed", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}"),
        *(f"--platform={platform}" for platform in [*platforms, f"linux_{machine}"]),
        *(f"{name}=={version}" for name, version in sorted(versions.items())),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RequirementsError(f"pip found no wheels for Python {python} on {machine}: {done.stderr.strip()}")
    for item in json.loads(done.stdout)["install"]:
        yield canonicalize_name(item["metadata"]["name"]), item["download_info"]["archive_info"]["hashes"]["sha256"]


def main() -> int:
    try:
        for lock in LOCKS:
            write(lock)
            print(lock.path)
    except RequirementsError as error:
        print(f"requirements: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
