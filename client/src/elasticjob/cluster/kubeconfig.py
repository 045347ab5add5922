"""Kubeconfig files: which API server, which credentials, which namespace. Pure, but for reading the files."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from elasticjob.errors import UnreachableError, UsageError

Json = dict[str, Any]
IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ClusterAccess:
    """An API server and how to log in to it. Contents win over files, as in kubectl."""

    server: str
    namespace: str = "default"
    context: str = ""
    kubeconfig: str = ""
    """The file that --kubeconfig names."""
    ca: str = ""
    ca_file: str = ""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""
    certificate: bytes = b""
    certificate_file: str = ""
    key: bytes = b""
    key_file: str = ""
    token: str = ""
    token_file: str = ""
    basic: str = ""
    """user:password."""
    command: Json = field(default_factory=dict)
    """`exec` of the user: a program that prints credentials."""
    auth_provider: str = ""
    """Name of a provider that the official client logs in with, such as oidc."""
    cluster_info: Json = field(default_factory=dict)
    """The cluster, as `command` is told it if it asks."""
    impersonate: tuple[tuple[str, str], ...] = ()
    """Headers."""


def paths(explicit: str | None, environment: Mapping[str, str]) -> list[Path]:
    """The kubeconfig files, in kubectl's order of precedence."""
    if explicit:
        return [Path(explicit).expanduser()]
    listed = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"]


def read(files: Sequence[Path], *, explicit: bool) -> Json:
    """The files merged: the first to set a value or to define a name wins. Raises UnreachableError."""
    merged: Json = {"clusters": {}, "users": {}, "contexts": {}}
    found = False
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            if explicit:
                raise UnreachableError(f"The kubeconfig {path} does not exist.") from None
            continue
        except OSError as error:
            raise UnreachableError(f"Cannot read the kubeconfig {path}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise UnreachableError(f"The kubeconfig {path} is not text in UTF-8.") from error
        found = True
        _merge(merged, _parsed(text, path), path.resolve().parent)
    return merged if found else {}


def _parsed(text: str, path: Path) -> Json:
    import yaml  # 20 ms, which --help need not pay

    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 a safe loader
    except yaml.YAMLError as error:
        raise UnreachableError(f"The kubeconfig {path} is not valid YAML: {error}") from error
    if not isinstance(content, dict | None):
        raise UnreachableError(f"{path} is not a kubeconfig.")
    return content or {}


def _merge(merged: Json, content: Json, folder: Path) -> None:
    merged["current-context"] = merged.get("current-context") or content.get("current-context")
    for kind, key in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
        for entry in content.get(kind) or []:
            value = _absolute(entry.get(key) or {}, folder)
            merged[kind].setdefault(entry.get("name"), value)


def _absolute(value: Json, folder: Path) -> Json:
    """Relative paths are relative to their file; a command without a slash is looked up on the PATH."""
    files = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    absolute: Json = {key: str(folder / value[key]) for key in files if value.get(key)}
    login = value.get("exec") or {}
    if "/" in login.get("command", ""):
        absolute["exec"] = login | {"command": str(folder / login["command"])}
    return value | absolute


def select(config: Json, context: str | None, namespace: str | None, acting: Json | None = None) -> ClusterAccess:
    """The target of a context; None: the current one. `acting`: see `impersonation`; each takes precedence over the
    kubeconfig's. Raises UnreachableError that names the known contexts."""
    contexts: Json = config["contexts"]
    name = context or config.get("current-context") or ""
    if name not in contexts:
        known = ", ".join(sorted(map(str, contexts))) or "none"
        if not name:
            raise UnreachableError("The kubeconfig has no current context.", f"Choose one with --context: {known}")
        raise UnreachableError(f"There is no context {name!r} in the kubeconfig.", f"Known contexts: {known}")
    chosen = contexts[name]
    cluster, user = config["clusters"].get(chosen.get("cluster")), config["users"].get(chosen.get("user"), {})
    if not cluster or not cluster.get("server"):
        raise UnreachableError(f"Context {name} names the cluster {chosen.get('cluster')!r}, which has no server.")
    ca = _decoded(cluster, "certificate-authority-data").decode("ascii", "replace")
    basic = f"{user['username']}:{user.get('password', '')}" if user.get("username") else ""
    return ClusterAccess(
        server=cluster["server"].rstrip("/"),
        namespace=namespace or chosen.get("namespace") or "default",
        context=name,
        ca=ca,
        ca_file="" if ca else cluster.get("certificate-authority", ""),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name", ""),
        proxy=cluster.get("proxy-url", ""),
        certificate=_decoded(user, "client-certificate-data"),
        certificate_file=user.get("client-certificate", ""),
        key=_decoded(user, "client-key-data"),
        key_file=user.get("client-key", ""),
        token=user.get("token", ""),
        token_file=user.get("tokenFile", ""),
        basic=basic,
        command=user.get("exec") or {},
        auth_provider=(user.get("auth-provider") or {}).get("name", ""),
        cluster_info=_cluster_info(cluster),
        impersonate=impersonation(user | (acting or {})),
    )


def _decoded(entry: Json, key: str) -> bytes:
    try:
        return base64.b64decode("".join(str(entry.get(key) or "").split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreachableError(f"{key} in the kubeconfig is not base64.") from error


def _cluster_info(cluster: Json) -> Json:
    """The Cluster of client.authentication.k8s.io."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
    extensions = cluster.get("extensions") or ()
    config = [
        extension.get("extension")
        for extension in extensions
        if extension.get("name") == "client.authentication.k8s.io/exec"
    ]
    return {name: cluster[name] for name in names if name in cluster} | ({"config": config[0]} if config else {})


def impersonation(user: Json) -> tuple[tuple[str, str], ...]:
    """The headers for `as`, `as-groups`, `as-uid` and `as-user-extra`. Raises UsageError without `as`."""
    if not user.get("as") and (user.get("as-groups") or user.get("as-uid") or user.get("as-user-extra")):
        raise UsageError("--as-group and --as-uid need a user to act as: add --as USER.")
    headers = {
        "Impersonate-User": [user["as"]] if user.get("as") else [],
        "Impersonate-Group": user.get("as-groups") or [],
        "Impersonate-Uid": [user["as-uid"]] if user.get("as-uid") else [],
    }
    for key, values in (user.get("as-user-extra") or {}).items():
        headers[f"Impersonate-Extra-{quote(key.lower(), safe='')}"] = values
    return tuple((name, str(value)) for name, values in headers.items() for value in values)


def in_cluster(
    environment: Mapping[str, str], namespace: str | None, folder: Path = IN_CLUSTER
) -> ClusterAccess | None:
    """The API server of the pod that this process runs in; None outside a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        return None
    own = folder / "namespace"
    return ClusterAccess(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace or (own.read_text(encoding="utf-8").strip() if own.exists() else "default"),
        ca_file=str(folder / "ca.crt"),
        token_file=str(folder / "token"),
    )


def find(explicit: str | None, context: str | None, namespace: str | None, acting: Json | None = None) -> ClusterAccess:
    """The target that kubectl would choose. `acting`: see `impersonation`. Raises UnreachableError, UsageError."""
    environment = os.environ
    files = paths(explicit, environment)
    config = read(files, explicit=bool(explicit))
    if config:
        return dataclasses.replace(select(config, context, namespace, acting), kubeconfig=explicit or "")
    pod = in_cluster(environment, namespace)
    if pod is None:
        raise UnreachableError(
            f"There is no cluster to talk to: {files[0]} does not exist.",
            "Set KUBECONFIG or pass --kubeconfig with the file that your cluster administrator gave you.",
        )
    return dataclasses.replace(pod, impersonate=impersonation(acting or {}))
