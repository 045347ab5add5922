"""Credentials: in a pod its service account, elsewhere the current kubeconfig. One source for our own requests and for kopf's."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import urllib.request
from urllib.parse import urlsplit

import kopf
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

POOL = 256
"""Connections: a few watches for each namespace, 64 writes, and room."""
LOGIN_SECONDS = 600
"""kopf asks for credentials again after this time: service account tokens are renewed well within."""


class Connection:
    """Where the API server is and who we are. `client` renews its own tokens."""

    def __init__(self, configuration: Configuration, refresher: asyncio.Task[None] | None) -> None:
        self._configuration = configuration
        self._refresher = refresher

    @classmethod
    async def open(cls) -> Connection:
        """Raises kubernetes.aio.config.ConfigException where there are no credentials."""
        configuration = Configuration()
        configuration.connection_pool_maxsize = POOL
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            configuration.proxy = proxy_for(configuration.host)
            return cls(configuration, None)
        loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration, persist_config=False
        )
        configuration.proxy = configuration.proxy or proxy_for(configuration.host)
        refresh = config.refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
        refresher = asyncio.create_task(refresh, name="refresh kubeconfig token")
        return cls(configuration, refresher)

    def client(self) -> ApiClient:
        return ApiClient(self._configuration)

    async def for_kopf(self) -> kopf.ConnectionInfo:
        configuration = self._configuration
        header = await configuration.get_api_key_with_prefix("BearerToken") or ""
        scheme, _, token = header.rpartition(" ")
        expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=LOGIN_SECONDS)
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            ca_data=configuration.ca_cert_data,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme or None,
            token=token or None,
            proxy_url=configuration.proxy,
            expiration=expires if token else None,
        )

    async def close(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher


def proxy_for(url: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY, read once: aiohttp (`trust_env`) reads them, and ~/.netrc, for each request, on a thread."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
