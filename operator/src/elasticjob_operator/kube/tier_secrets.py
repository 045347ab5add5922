"""The Secret of each etcd tier: its certificates, and the password of its user root. It is created once, in the
operator's namespace, and its certificates are renewed in time: etcd reads their files again for each connection."""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from elasticjob_runtime.etcd import StoreError, Unavailable, parse_endpoints

from elasticjob_operator import names
from elasticjob_operator.certificates import LEAF_LIFETIME, InvalidCertificateError
from elasticjob_operator.kube.api_resources import SECRETS
from elasticjob_operator.kube.certificates import CertificatesUnavailable, OperatorCertificates
from elasticjob_operator.kube.client import MERGE_PATCH, ApiError, ConflictError, KubeClient, NotFoundError
from elasticjob_operator.kube.etcd_secrets import PASSWORD_BYTES
from elasticjob_operator.settings import EtcdTier, Settings

log = logging.getLogger(__name__)


class TierSecrets:
    """`api`: of an operator that may be on standby."""

    def __init__(self, api: KubeClient, settings: Settings, certificates: OperatorCertificates) -> None:
        self._client = api
        self._settings = settings
        self._certificates = certificates

    async def prepare(self, tier: EtcdTier) -> None:
        """Afterwards its Secret exists, with certificates for half a year at least. Raises StoreError."""
        namespace, name = self._settings.secret_of(tier)
        try:
            await self._prepare(tier, SECRETS.path(namespace, name))
        except ConflictError:
            log.info("Secret %s/%s: another operator was faster", namespace, name)
        except (ApiError, ConnectionError, CertificatesUnavailable, InvalidCertificateError) as error:
            raise Unavailable(f"Secret {namespace}/{name} cannot be made: {error}") from error

    async def _prepare(self, tier: EtcdTier, path: str) -> None:
        try:
            found = await self._client.request("GET", path)
        except NotFoundError:
            found = {}
        hosts = list(dict.fromkeys(endpoint.host for endpoint in parse_endpoints(tier.endpoint)))
        files = await self._certificates.for_tier(hosts, _texts(found), needed=LEAF_LIFETIME / 2)
        query = {"fieldManager": names.FIELD_MANAGER}
        if not found:
            password = secrets.token_urlsafe(PASSWORD_BYTES)
            body = _secret(tier.name, {**files, "username": "root", "password": password})
            await self._client.request("POST", path.rpartition("/")[0], query=query, body=body)
        elif files:
            patch = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "stringData": files}
            await self._client.request("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH)


def _secret(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "elasticjob", "app.kubernetes.io/managed-by": names.FIELD_MANAGER}
    return {
        "apiVersion": "v1",
        "kind": SECRETS.kind,
        "metadata": {"name": name, "labels": labels},
        "type": "Opaque",
        "stringData": dict(data),
    }


def _texts(secret: Mapping[str, Any]) -> dict[str, str]:
    """Raises StoreError."""
    try:
        data = (secret.get("data") or {}).items()
        return {key: base64.b64decode(text, validate=True).decode() for key, text in data}
    except (binascii.Error, UnicodeDecodeError) as error:
        raise StoreError("its Secret has something that is not text") from error
