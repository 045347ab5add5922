"""Credentials from the pod's service account or the current kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

log = logging.getLogger(__name__)

POOL = 256
"""Connections for writes and lists. Watches are not counted."""
CA_SECONDS = 60.0
"""How often to check the CA file for changes, s: Kubernetes rotates it in running pods."""


class Credentials:
    """Address and credentials of the API server. `client` renews its own tokens."""

    def __init__(self, configuration: Configuration, refresher: asyncio.Task[None] | None) -> None:
        self._configuration = configuration
        self._refresher = refresher
        self._contexts: list[ssl.SSLContext] = []

    @classmethod
    async def open(cls) -> Credentials:
        """Raises kubernetes.aio.config.ConfigException if there are no credentials."""
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
        made = ApiClient(self._configuration)
        self._contexts.append(made.rest_client.ssl_context)
        return made

    async def follow_ca(self) -> None:
        """Runs until cancelled: makes the clients trust a rotated CA, in addition to the earlier ones."""
        path = self._configuration.ssl_ca_cert
        known = _content(path)
        while True:
            await asyncio.sleep(CA_SECONDS)
            content = _content(path)
            if content in (known, b""):
                continue
            try:
                for context in self._contexts:
                    context.load_verify_locations(cadata=content.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                log.warning("Cannot read the changed %s, retrying: %s", path, error)
                continue
            known = content
            log.info("%s has changed: trusting the new CA as well", path)

    async def close(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher


def _content(path: str | None) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        return b""


def proxy_for(url: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY, read once: aiohttp (`trust_env`) reads them, and ~/.netrc, for each request, on a
    thread."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
