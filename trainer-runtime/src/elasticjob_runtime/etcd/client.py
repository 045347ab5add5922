"""The client for a real etcd, 3.4 or newer, over its JSON gateway. Standard library only."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.etcd import config, protocol, responses
from elasticjob_runtime.etcd.auth import TokenCache
from elasticjob_runtime.etcd.config import EtcdCredentials, TlsConfig
from elasticjob_runtime.etcd.endpoints import Endpoint, Rotation, parse_endpoints
from elasticjob_runtime.etcd.interface import (
    Compare,
    Denied,
    Get,
    KeyRange,
    LeaseLost,
    Operation,
    Put,
    RangeResult,
    Store,
    TxnResult,
    WatchCallback,
)
from elasticjob_runtime.etcd.lease import KeptLease, new_lease_id
from elasticjob_runtime.etcd.transport import Transport
from elasticjob_runtime.etcd.watch import EtcdWatch

log = logging.getLogger(__name__)

PROBE_INTERVAL = 5.0
"""Seconds without news after which a watch probes its server."""


class EtcdClient(Store):
    """Thread-safe; the only threads it starts are those of watches and leases.

    Nothing is sent before the first call, which also checks that the endpoint is an etcd (NotEtcd).
    """

    def __init__(
        self,
        endpoints: str | Sequence[Endpoint],
        *,
        tls: TlsConfig | None = None,
        credentials: EtcdCredentials | None = None,
        timeout: float = config.DEFAULT_TIMEOUT,
        probe_interval: float = PROBE_INTERVAL,
    ) -> None:
        """`timeout`: seconds a call may take. Raises ValueError if an endpoint or a TLS file cannot be used."""
        parsed = parse_endpoints(endpoints) if isinstance(endpoints, str) else tuple(endpoints)
        secure = any(endpoint.tls for endpoint in parsed)
        context = (tls or TlsConfig()).context() if secure else None
        self._user = credentials.user if credentials is not None else None
        self._timeout = timeout
        self._probe_interval = probe_interval
        self._transport = Transport(Rotation(parsed), context, TokenCache(credentials))
        self._watches: set[EtcdWatch] = set()
        self._leases: set[KeptLease] = set()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._transport.rotation.endpoints

    def __repr__(self) -> str:
        return f"EtcdClient({', '.join(map(str, self.endpoints))})"

    def range(self, get: Get, *, timeout: float | None = None) -> RangeResult:
        protocol.check_key(get.range.key)
        answer = self._call(
            "/v3/kv/range", protocol.range_request(get), timeout, f"read {get.range.key}", idempotent=True
        )
        return RangeResult(protocol.key_values(answer), protocol.revision_of(answer))

    def put(self, key: str, value: str, *, lease: int = 0, timeout: float | None = None) -> int:
        protocol.check_key(key)
        answer = self._call(
            "/v3/kv/put", protocol.put_request(Put(key, value, lease)), timeout, f"write {key}", idempotent=False
        )
        return protocol.revision_of(answer)

    def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        protocol.check_txn(success, failure, guards=compare)
        only_reads = all(isinstance(op, Get) for op in (*success, *failure))
        request = protocol.txn_request(compare, success, failure)
        what = "run a transaction on " + ", ".join(dict.fromkeys(protocol.key_of(op) for op in (*success, *failure)))
        return protocol.txn_result(self._call("/v3/kv/txn", request, timeout, what, idempotent=only_reads))

    def lease(self, ttl: float, on_lost: Callable[[str], None]) -> KeptLease:
        lease_id = new_lease_id()
        started = time.monotonic()
        granted = self._grant(lease_id, ttl)
        transport = self._transport.sibling()

        def renew() -> float:
            # One endpoint gets a sixth of the TTL, so that three can be tried before the lease expires.
            request = {"ID": str(lease_id)}
            answer = transport.call("/v3/lease/keepalive", request, granted / 2, idempotent=True, attempt=granted / 6)
            prolonged = protocol.ttl_of(answer)
            if prolonged <= 0:
                raise LeaseLost("the lease has expired or was revoked")
            return prolonged

        def revoke() -> None:
            self._call("/v3/lease/revoke", {"ID": str(lease_id)}, None, "revoke a lease", idempotent=True)

        forget = self._leases.discard
        lease = KeptLease(lease_id, granted, started, renew, revoke, on_lost, interrupt=transport.close, on_end=forget)
        self._leases.add(lease)
        return lease

    def _grant(self, lease_id: int, ttl: float) -> float:
        """Returns the granted TTL. The client chooses the lease's ID, so a grant whose answer was lost may be sent
        again."""
        wanted = max(1, math.ceil(ttl))
        try:
            answer = self._call(
                "/v3/lease/grant", {"TTL": str(wanted), "ID": str(lease_id)}, None, "grant a lease", idempotent=True
            )
        except responses.Exists:
            return float(wanted)
        return protocol.ttl_of(answer) or float(wanted)

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: WatchCallback) -> EtcdWatch:
        transport, interval, forget = self._transport.sibling(), self._probe_interval, self._watches.discard
        watch = EtcdWatch(transport, ranges, start_revision, callback, probe_interval=interval, on_end=forget)
        self._watches.add(watch)
        return watch

    def close(self) -> None:
        for lease in list(self._leases):
            lease.stop()
        for watch in list(self._watches):
            watch.cancel()
        self._transport.close()

    def _call(
        self, path: str, request: protocol.Json, timeout: float | None, what: str, *, idempotent: bool
    ) -> protocol.Json:
        limit = self._timeout if timeout is None else timeout
        try:
            return self._transport.call(path, request, limit, idempotent=idempotent)
        except Denied as error:
            raise type(error)(f"etcd refuses to {what}: {error}{self._remedy(error)}") from error

    def _remedy(self, error: Denied) -> str:
        if self._user is None or "permission denied" not in str(error):
            return ""
        return f": give user {self._user!r} a role with the permission readwrite on the prefix of this key"


def connect(endpoint: str, conf: Mapping[str, str] | None = None) -> EtcdClient:
    """Creates a client from --rdzv-endpoint (host:port[,host:port], URLs, IPv6) and the CONF_KEYS of --rdzv-conf.

    Sends nothing yet. Raises ValueError, with one sentence for the user, if a setting is wrong or a file cannot be
    used.
    """
    settings = config.parse_conf(conf or {})
    endpoints = parse_endpoints(endpoint, protocol=settings.protocol)
    if settings.tls != TlsConfig() and not any(e.tls for e in endpoints):
        raise ValueError("cacert, cert or key is given, but the protocol is http; add protocol=https")
    return EtcdClient(endpoints, tls=settings.tls, credentials=settings.credentials, timeout=settings.timeout)
