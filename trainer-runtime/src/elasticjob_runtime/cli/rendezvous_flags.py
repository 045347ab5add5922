"""Converts the flags that describe the rendezvous: --rdzv-conf, --rdzv-id, --local-addr and --port-range. The torchrun
plug-in uses them too.

Raises UsageError, with one sentence for the person who typed the flag.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from elasticjob_runtime.cli.usage import UsageError, did_you_mean
from elasticjob_runtime.contract import DEFAULT_PREFIX, Env, ExitCode
from elasticjob_runtime.etcd import CONF_KEYS, Endpoint, EtcdClient, connect, with_pod_credentials
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.rendezvous.config import (
    MIN_LEASE_TTL,
    MIN_READ_TIMEOUT,
    RENDEZVOUS_KEYS,
    SHORT_JOIN_TIMEOUT,
    RendezvousConf,
)
from elasticjob_runtime.rendezvous.network import PortRange

logger = logging.getLogger(__name__)

IGNORED_KEYS = frozenset({
    "timeout", "last_call_timeout", "close_timeout", "keep_alive_interval", "keep_alive_max_attempt",
    "heartbeat_timeout", "is_host", "store_type", "use_libuv",
})  # fmt: skip
"""Keys of torch's backends that have no meaning here: there is no last call to wait for, failures are detected in other
ways, and no node hosts the rendezvous."""


def rendezvous_conf(text: str) -> RendezvousConf:
    try:
        pairs = dict(parse_pairs(text))
    except ValueError as error:
        raise UsageError(str(error)) from error
    own: dict[str, float] = {}
    prefix = pairs.pop("prefix", DEFAULT_PREFIX)
    ports = port_range(pairs.pop("port_range", None), "--rdzv-conf: port_range")
    for key in [key for key in pairs if key in RENDEZVOUS_KEYS]:
        own[key] = _seconds(key, pairs.pop(key))
    join_timeout = own.get("join_timeout", SHORT_JOIN_TIMEOUT)
    if join_timeout < SHORT_JOIN_TIMEOUT and "read_timeout" not in pairs:
        pairs["read_timeout"] = str(max(MIN_READ_TIMEOUT, join_timeout / 2))
    unknown = sorted(set(pairs) - CONF_KEYS - IGNORED_KEYS)
    if unknown:
        known = sorted({*RENDEZVOUS_KEYS, *CONF_KEYS})
        raise UsageError(
            f"--rdzv-conf: unknown key {unknown[0]!r}{did_you_mean(unknown[0], known)}; valid keys: {', '.join(known)}"
        )
    return RendezvousConf(
        prefix=prefix,
        port_range=ports,
        connection={key: value for key, value in pairs.items() if key in CONF_KEYS},
        **own,
    )


def connection(conf: RendezvousConf, endpoint: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of the connection to `endpoint`.

    A --rdzv-conf on the command line replaces PET_RDZV_CONF, in which the operator names the credentials for
    PET_RDZV_ENDPOINT: for that endpoint, and no other, they still apply.
    """
    if endpoint != environment.get(Env.RDZV_ENDPOINT):
        return conf.connection
    try:
        pod = parse_pairs(environment.get(Env.RDZV_CONF, ""))
    except ValueError:
        return conf.connection
    return with_pod_credentials(conf.connection, pod)


def open_store(endpoint: str, conf: RendezvousConf, environment: Mapping[str, str]) -> EtcdClient:
    """Returns a client for etcd; sends nothing yet."""
    if not endpoint:
        raise UsageError("--rdzv-backend=etcd-v3 needs --rdzv-endpoint=HOST:PORT of an etcd")
    try:
        return connect(endpoint, connection(conf, endpoint, environment))
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def run_id(text: str, prefix: str, *, several: bool) -> str:
    """Checks --rdzv-id. `several`: the group may have more than one member."""
    if not text.strip() or "/" in text:
        raise UsageError(
            f"--rdzv-id={text}: must be a name without a slash, because the job's keys are below <prefix>/<rdzv-id>/"
        )
    if text != "none":
        return text
    if several and prefix == DEFAULT_PREFIX:
        raise UsageError(
            "no --rdzv-id: jobs without an id share the same keys in etcd and would join each other. Give each job its "
            "own id, the same for all its members; if your launcher has no such flag (accelerate launch), use "
            "--rdzv-conf=prefix=/NAME or PET_RDZV_ID"
        )
    logger.warning("no --rdzv-id: jobs without an id share the same keys in etcd")
    return text


def address(
    local_addr: str | None, environment: Mapping[str, str], endpoints: Sequence[Endpoint], *, several: bool
) -> str:
    """The address at which the others reach this member: --local-addr, else the one that the operator set, else
    detected."""
    given = local_addr or environment.get(Env.ADDRESS)
    if not given:
        return network.own_address(endpoints, several=several)
    try:
        return network.given_address(given, several=several)
    except OSError as error:
        name = "--local-addr" if local_addr else Env.ADDRESS
        raise UsageError(f"{name}={given}: {error}; give an IP address", ExitCode.UNAVAILABLE) from error


def port_range(text: str | None, flag: str = "--port-range") -> PortRange | None:
    if not text:
        return None
    try:
        return PortRange.parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def _seconds(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0) or (key == "lease_ttl" and value < MIN_LEASE_TTL):
        least = f" of at least {MIN_LEASE_TTL:g}" if key == "lease_ttl" else ""
        raise UsageError(f"--rdzv-conf: {key}={text} is not a number of seconds{least}")
    return value


def parse_pairs(text: str) -> Mapping[str, str]:
    """Parses --rdzv-conf: `key=value,key=value`. Raises ValueError if a part is not of this form."""
    pairs: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key.strip() or not value.strip():
            raise ValueError(f"--rdzv-conf: {part!r} is not of the form key=value")
        pairs[key.strip()] = value.strip()
    return pairs
