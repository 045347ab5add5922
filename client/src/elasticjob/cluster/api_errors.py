"""What the API server's error answers mean to a person. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from elasticjob.errors import (
    AlreadyExistsError,
    ElasticJobError,
    ForbiddenError,
    InvalidManifestError,
    NotFoundError,
    NotInstalledError,
    UnreachableError,
)
from elasticjob.names import GROUP, INSTALL, KIND, PLURAL


class ServerBusyError(UnreachableError):
    """The API server answers, but cannot serve the request now."""

    retry_after: float | None = None
    """When to send the request again, if the API server has said it, s."""


class ExpiredError(ElasticJobError):
    """A resource version is too old to watch from: list again."""


class ConflictError(ElasticJobError):
    """The object has changed meanwhile: read it again."""


class UnauthorizedError(ForbiddenError):
    """The API server does not accept the credentials."""


_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| (?P<everywhere>at the cluster scope))?'
)
_SINGULAR = {
    PLURAL: KIND,
    "pods": "pod",
    "namespaces": "namespace",
    "events": "Event",
    "localqueues": "LocalQueue",
    "clusterqueues": "ClusterQueue",
}

NOT_INSTALLED = NotInstalledError(
    "This cluster has no ElasticJobs: the CustomResourceDefinition elasticjobs.elasticjob.dev is not installed.",
    f"An administrator installs it, together with the operator: {INSTALL}",
)


def api_error(status: int, body: Mapping[str, Any], path: str, namespace: str, server: str) -> ElasticJobError:
    """`body`: metav1.Status."""
    message = str(body.get("message") or f"HTTP {status}")
    details = body.get("details") or {}
    reason = body.get("reason")
    if status == 401:
        return UnauthorizedError(
            f"The API server {server} does not accept your credentials.", "Log in again, or choose another --context."
        )
    if status == 403:
        return forbidden(message)
    if status == 404:
        return _not_found(details, path, namespace, message)
    if status == 409:
        exists = reason == "AlreadyExists"
        return AlreadyExistsError(f"{message}.") if exists else ConflictError(f"{message}.")
    if status == 410:
        return ExpiredError(message)
    if status in (400, 413, 415, 422):
        return InvalidManifestError(_invalid(message, details))
    if status == 429 or status >= 500:
        return ServerBusyError(f"The API server {server} cannot answer now: {message}")
    return ElasticJobError(f"The API server {server} answered: {message}")


def forbidden(message: str) -> ForbiddenError:
    """Says which right is missing, and who can grant it.

    >>> print(forbidden('x is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "ml"'))
    User ann has no right to list pods in namespace ml.
    Ask your cluster administrator: kubectl create rolebinding ann-edit --clusterrole=edit --user=ann --namespace=ml
    """
    found = _FORBIDDEN.search(message)
    if found is None:
        return ForbiddenError(f"The cluster does not allow this: {message}.")
    namespace, user = found["namespace"], found["user"]
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    error = f"User {user} has no right to {found['verb']} {found['resource']} {where}."
    if not namespace and found["everywhere"]:
        return ForbiddenError(error, "Name one namespace with -n, or ask your cluster administrator for the right.")
    role = "edit" if found["group"] in ("", GROUP) else "admin"
    binding = re.sub(r"[^a-z0-9-]+", "-", f"{user}-{role}".lower()).strip("-")
    grant = (
        f"kubectl create rolebinding {binding} --clusterrole={role} --user={shlex.quote(user)} --namespace={namespace}"
    )
    return ForbiddenError(error, f"Ask your cluster administrator: {grant}")


def _not_found(details: Mapping[str, Any], path: str, namespace: str, message: str) -> ElasticJobError:
    name, kind = details.get("name"), str(details.get("kind") or "")
    if not name and path.startswith(f"/apis/{GROUP}/"):
        return NOT_INSTALLED
    if not name:
        return NotFoundError(f"{message}.")
    if kind == "namespaces":
        return NotFoundError(f"There is no namespace {name}.")
    where = f" in namespace {namespace}" if "/namespaces/" in path else ""
    return NotFoundError(f"There is no {_SINGULAR.get(kind, kind)} {name}{where}.")


def _invalid(message: str, details: Mapping[str, Any]) -> str:
    causes = details.get("causes") or []
    lines = [f"  {cause.get('field') or 'manifest'}: {cause.get('message', '')}" for cause in causes]
    if lines:
        return "The API server rejects the job:\n" + "\n".join(dict.fromkeys(lines))
    return f"The API server rejects the job: {message.removeprefix('strict decoding error: ')}."
