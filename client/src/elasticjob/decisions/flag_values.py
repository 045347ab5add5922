"""Values of flags that have a syntax of their own: NAME=VALUE, mounts, tolerations, durations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.errors import UsageError
from elasticjob.names import GROUP, PLURAL, SINGULAR, VERSION

_TYPES = {"", "ej", *(f"{word}{group}" for word in (SINGULAR, PLURAL) for group in ("", f".{GROUP}"))}
_TYPES |= {f"{PLURAL}.{VERSION}.{GROUP}", f"{SINGULAR}.{VERSION}.{GROUP}"}
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_READ_ONLY = ("ro", "readonly")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Mount:
    """A volume and where it is mounted."""

    path: str
    source: Mapping[str, Any]
    """A volume source of the pod: {"persistentVolumeClaim": {...}}."""
    read_only: bool = False


def job_name(given: str) -> str:
    """The name in `[TYPE[.GROUP]/]NAME`, as kubectl takes it. Raises UsageError.

    >>> job_name("elasticjob.elasticjob.dev/bert")
    'bert'
    """
    kind, _, name = given.rpartition("/")
    if kind.lower() not in _TYPES:
        raise UsageError(f"{given} is not an ElasticJob, but of type {kind}.")
    if not _OBJECT.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a job.", "See all jobs: elasticjob list")
    return name


def is_number(text: str) -> bool:
    """Of digits that int takes and the API server understands: ² is none."""
    return text.isascii() and text.isdigit()


def pairs(flag: str, values: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE, repeated. Raises UsageError.

    >>> pairs("--env", ["LR=0.1", "NAME=a=b"])
    {'LR': '0.1', 'NAME': 'a=b'}
    """
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise UsageError(f"{flag} {value}: write NAME=VALUE.")
        found[name] = text
    return found


def seconds(flag: str, value: str) -> int:
    """A duration as kubectl writes it: 90s, 5m, 1h30m; a bare number is seconds. Raises UsageError.

    >>> seconds("--since", "1h30m")
    5400
    """
    text = value.strip()
    if is_number(text):
        return int(text)
    if not text or not re.fullmatch(r"(\d+[smhd])+", text):
        raise UsageError(f"{flag} {value}: write a duration such as 30s, 5m or 1h30m.")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))


def claim_mount(value: str) -> Mount:
    """`CLAIM:/path[:ro]`, or Run:ai's `claimname=CLAIM,path=/path[,readonly]`. Raises UsageError."""
    flag = f"--existing-pvc {value}"
    if "=" in value:
        parts = _parts(flag, value, {"claimname", "path"}, {"readonly"})
        claim, path, read_only = parts["claimname"], parts["path"], "readonly" in parts
    else:
        claim, path, *mode = (*value.split(":", 2), "") if ":" in value else (value, "", "")
        if mode[0] not in ("", *_READ_ONLY, "rw", "readwrite"):
            raise UsageError(f"{flag}: {mode[0]} is not ro or rw.")
        read_only = mode[0] in _READ_ONLY
    if not claim or not path.startswith("/"):
        raise UsageError(f"{flag}: write CLAIM:/path, with the absolute path to mount it at.")
    return Mount(path, {"persistentVolumeClaim": {"claimName": claim}}, read_only)


def host_mount(value: str) -> Mount:
    """Run:ai's `path=/on/the/node,mount=/in/the/container[,readwrite]`. Raises UsageError."""
    parts = _parts(f"--host-path {value}", value, {"path", "mount"}, {"readwrite", "readonly"})
    return Mount(parts["mount"], {"hostPath": {"path": parts["path"]}}, "readwrite" not in parts)


def nfs_mount(value: str) -> Mount:
    """Run:ai's `server=HOST,path=/export,mountpath=/in/the/container[,readwrite]`. Raises UsageError."""
    parts = _parts(f"--nfs {value}", value, {"server", "path", "mountpath"}, {"readwrite", "readonly"})
    source = {"nfs": {"server": parts["server"], "path": parts["path"]}}
    return Mount(parts["mountpath"], source, "readwrite" not in parts)


def port(value: str) -> tuple[int, str]:
    """(container port, type of the Service that was asked for): `8080` or Run:ai's
    `service-type=NodePort,container=8080`. Raises UsageError."""
    parts = {"container": value} if is_number(value) else dict(part.partition("=")[::2] for part in value.split(","))
    number = parts.get("container", "")
    if not is_number(number):
        raise UsageError(f"--port {value}: write the container's port, such as 8080.")
    return int(number), parts.get("service-type", "")


def toleration(value: str) -> dict[str, str]:
    """`key[=value][:effect]`. Raises UsageError.

    >>> toleration("spot=true:NoSchedule")
    {'key': 'spot', 'operator': 'Equal', 'value': 'true', 'effect': 'NoSchedule'}
    """
    found = re.fullmatch(r"([\w./-]+)(?:=([\w.-]*))?(?::(NoSchedule|NoExecute|PreferNoSchedule))?", value)
    if found is None:
        raise UsageError(f"--toleration {value}: write KEY[=VALUE][:EFFECT], such as spot=true:NoSchedule.")
    key, wanted, effect = found.groups()
    how = {"operator": "Exists"} if wanted is None else {"operator": "Equal", "value": wanted}
    return {"key": key, **how, **({"effect": effect} if effect else {})}


def _parts(flag: str, value: str, needed: set[str], optional: set[str]) -> dict[str, Any]:
    """key=value and bare words, separated by commas."""
    found = {key: text for key, _, text in (part.strip().partition("=") for part in value.split(","))}
    unknown, missing = sorted(found.keys() - needed - optional), sorted(needed - found.keys())
    if unknown:
        raise UsageError(f"{flag}: {unknown[0]} is not one of {', '.join(sorted(needed | optional))}.")
    if missing:
        raise UsageError(f"{flag}: {missing[0]}= is missing.")
    return found
