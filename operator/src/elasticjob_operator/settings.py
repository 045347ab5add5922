"""The operator's settings, read from the environment at startup. The chart sets them from its values."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from elasticjob_operator.allowed import Pattern, uses_tls
from elasticjob_operator.names import NamespacedName

DEFAULT_ETCD_IMAGE = "gcr.io/etcd-development/etcd:v3.6.11"
"""Later than 3.5.2: earlier 3.5 releases can corrupt their data."""
MOST_SHARDS = 32
"""The chart grants the right to as many Leases."""

TOPOLOGY_LABELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-host",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/accelerator",
)
"""Labels by which clouds and NVIDIA's Topograph say where a node is in the network, from the widest domain down."""

_POD_FIELDS = {
    "tolerations": list,
    "nodeSelector": dict,
    "priorityClassName": str,
    "imagePullSecrets": list,
    "resources": dict,
}
_POLICY_FIELDS = {"operator": list, "metricsPort": int, "metricsFrom": list}
_TIER_FIELDS = {"tiers": list, "maxRuns": int, "maxBytes": int}
_WORDS = {list: "a list", dict: "an object", str: "a string", int: "an integer"}


Choice = TypeVar("Choice", bound=enum.Enum)


class SettingsError(ValueError):
    """An environment variable has an invalid value; the message names it."""


class LogFormat(str, enum.Enum):
    JSON = "json"
    PLAIN = "plain"


class KueueMode(str, enum.Enum):
    """Whether jobs with the label of a queue wait for Kueue."""

    AUTO = "auto"
    """The operator creates their Workloads, if Kueue is installed."""
    OFF = "off"
    """The label is left to others, such as an integration that sets spec.suspend."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NetworkPolicySettings:
    """What a job's NetworkPolicies depend on besides the job. Peers are as `from` in a NetworkPolicy."""

    operator: tuple[Mapping[str, Any], ...]
    """Selects the operator's own pods."""
    metrics_port: int
    """Port of the agents' metrics."""
    metrics_from: tuple[Mapping[str, Any], ...] = ()
    """Who may connect to that port. Empty: all."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EtcdTier:
    """An etcd that the chart runs for many jobs."""

    name: str
    """Of the tier, of its StatefulSet, and of the Secret with its certificates and its user root."""
    endpoint: str
    """https://host:port of its Service and of each member, separated by commas."""
    open: bool = True
    """It takes new runs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EtcdTiers:
    tiers: tuple[EtcdTier, ...] = ()
    max_runs: int = 500
    """Runs of one tier, beyond which it takes no more."""
    max_bytes: int = 1 << 30
    """The same of what its database has in use."""

    def named(self, name: str) -> EtcdTier | None:
        return next((tier for tier in self.tiers if tier.name == name), None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    etcd_image: str = DEFAULT_ETCD_IMAGE
    """ELASTICJOB_ETCD_IMAGE: image of a job's own etcd, unless the job sets one."""

    etcd_pod: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """ELASTICJOB_ETCD_POD: a JSON object with defaults for the pod of a job's own etcd: tolerations, nodeSelector,
    priorityClassName, imagePullSecrets, as in a pod's spec, and the resources of its container. A job's
    spec.rendezvous.etcd takes precedence."""

    runtime_image: str = ""
    """ELASTICJOB_RUNTIME_IMAGE: image of the runtime, for jobs with spec.workers.runtime.inject. Empty: the images of
    worker pods must contain the runtime."""

    runtime_pull_policy: str = "IfNotPresent"
    """ELASTICJOB_RUNTIME_PULL_POLICY: Always, IfNotPresent or Never, for that image."""
    etcd_tls: bool = True
    """ELASTICJOB_ETCD_TLS: true or false: whether a job's own etcd uses TLS and accepts only clients with a certificate
    of the job or of the operator. Applies to new runs; a run keeps what it started with."""

    ca_namespace: str = ""
    """ELASTICJOB_CA_NAMESPACE: namespace of the Secret with the operator's certificate authority, from which the
    certificates for jobs' etcds are made. Must not be readable by the owners of jobs. Required with TLS."""

    ca_name: str = "elasticjob-ca"
    """ELASTICJOB_CA_NAME: name of that Secret. Operators that work for the same jobs share it."""

    endpoint: str = ""
    """ELASTICJOB_RENDEZVOUS_ENDPOINT: https://host:port or host:port of an etcd for all jobs that set no endpoint.
    Empty: each job gets its own etcd."""

    endpoint_secret: NamespacedName | None = None
    """ELASTICJOB_RENDEZVOUS_SECRET: namespace/name of the Secret with the operator's credentials for that etcd, in
    which each run then gets a user of its own. Must not be readable by the owners of jobs. Requires an https endpoint.
    None: the etcd is used without credentials."""

    etcd_tiers: EtcdTiers = EtcdTiers()
    """ELASTICJOB_ETCD_TIERS: a JSON object with tiers, a list of objects with name, endpoint and open, and with maxRuns
    and maxBytes. The runs of jobs that set no endpoint are divided among the open tiers; without any, each job gets its
    own etcd. Requires ELASTICJOB_CA_NAMESPACE, where the Secrets of the tiers are."""

    allowed_endpoints: tuple[Pattern, ...] = ()
    """ELASTICJOB_ALLOWED_ENDPOINTS: comma-separated patterns (see `allowed`) of the endpoints that jobs may use.
    Empty: any. The operator's default endpoint and a job's own etcd are always allowed."""

    namespaces: tuple[str, ...] = ()
    """ELASTICJOB_WATCH_NAMESPACES: comma-separated. Empty: the whole cluster."""

    topology_labels: tuple[str, ...] = TOPOLOGY_LABELS
    """ELASTICJOB_TOPOLOGY_LABELS: comma-separated labels of nodes, from the widest domain of the network to the
    narrowest, in whose order worker pods get their ranks. Empty: those that are widely used."""

    network_policies: NetworkPolicySettings | None = None
    """ELASTICJOB_NETWORK_POLICIES: a JSON object with operator, metricsPort and metricsFrom. Empty: jobs get no
    NetworkPolicies, and existing ones are deleted."""

    kueue: KueueMode = KueueMode.OFF
    """ELASTICJOB_KUEUE: auto or off: whether jobs with the label kueue.x-k8s.io/queue-name wait for Kueue. The chart
    sets it, with the permissions that it takes."""

    log_format: LogFormat = LogFormat.PLAIN
    """ELASTICJOB_LOG_FORMAT: json (one object a line, for log collectors) or plain."""

    node_lost_seconds: float = 5.0
    """ELASTICJOB_NODE_LOST_SECONDS: seconds that a node must be NotReady before its worker pods are replaced. A lower
    value replaces them sooner, but a slow node may lose its worker pods. Kubernetes itself marks an unreachable node
    NotReady after about 50 s."""

    node_settle_seconds: float = 25.0
    """ELASTICJOB_NODE_SETTLE_SECONDS: seconds after a gap in watching nodes (startup, an API server outage) during
    which no node is considered lost. Kubelets need up to 17 s to report again, and Kubernetes 5 s more to update the
    node."""

    probe_port: int = 8080
    """ELASTICJOB_PROBE_PORT: port of /healthz and /readyz. 0: any free port."""

    metrics_authentication: bool = False
    """ELASTICJOB_METRICS_AUTHENTICATION: true or false: whether /metrics requires a token of a user that may `get` the
    path /metrics."""

    metrics_certificate: str = ""
    """ELASTICJOB_METRICS_CERTIFICATE: folder with tls.crt and tls.key. /metrics is then served with TLS, and not on the
    port of the probes. Empty: without TLS, on that port."""

    metrics_port: int = 8443
    """ELASTICJOB_METRICS_PORT: port of /metrics with TLS. 0: any free port."""

    lease_namespace: str = ""
    """ELASTICJOB_LEASE_NAMESPACE: namespace of the Leases for leader election. Empty: no leader election."""

    lease_name: str = "elasticjob"
    """ELASTICJOB_LEASE_NAME: name of the Lease of the first shard, and the beginning of the others' names. Of the
    operators with the same Leases, one leads each shard."""

    shards: int = 1
    """ELASTICJOB_SHARDS: number of shards into which the jobs are divided, from 1 to 32. Operators divide the shards
    among themselves. Needs ELASTICJOB_LEASE_NAMESPACE."""

    lease_identity: str = ""
    """ELASTICJOB_LEASE_IDENTITY: unique identity of this operator, such as the pod's name. A restarted operator with
    the same identity still holds its lease. Empty: a new identity for each process."""

    lease_seconds: float = 4.0
    """ELASTICJOB_LEASE_SECONDS: seconds without a renewal by the leader after which another operator takes over, from 2
    to 300. If too low, a briefly slow API server makes the leader step down. A leader that cannot renew stops acting
    after two thirds of this time."""

    workers: int = 8
    """ELASTICJOB_WORKERS: number of concurrent reconciliations. More do not help a busy API server, and events that
    arrive while a job is queued are handled in one reconciliation."""

    progress_status_writes: float = 20.0
    """ELASTICJOB_PROGRESS_STATUS_WRITES: how many statuses a second are written for the progress of the training alone,
    of all jobs together; 0: none. What changes otherwise is written at once, with the progress of that moment."""

    progress_writes: float = 100.0
    """ELASTICJOB_PROGRESS_WRITES: how many ElasticJobProgresses a second are written, of all jobs together; 0: none. A
    job gets one where the status falls behind."""

    resync_seconds: float = 60.0
    """ELASTICJOB_RESYNC_SECONDS: seconds between resyncs, the safety net for lost events: jobs that differ from the API
    server's are reconciled, and a tenth of all jobs."""

    @property
    def own_secrets(self) -> frozenset[NamespacedName]:
        """Secrets whose content goes to no endpoint that a job names."""
        of_tiers = map(self.secret_of, self.etcd_tiers.tiers)
        of_endpoint = [self.endpoint_secret] if self.endpoint_secret else []
        return frozenset({(self.ca_namespace, self.ca_name), *of_tiers, *of_endpoint})

    def secret_of(self, tier: EtcdTier) -> NamespacedName:
        """The Secret with the certificates and the user root of a tier."""
        return self.ca_namespace, tier.name

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Raises SettingsError."""
        get, default = _Reader(environment), cls()
        settings = cls(
            etcd_image=get.text("ELASTICJOB_ETCD_IMAGE", default.etcd_image),
            etcd_pod=get.object("ELASTICJOB_ETCD_POD", _POD_FIELDS),
            runtime_image=get.text("ELASTICJOB_RUNTIME_IMAGE", ""),
            runtime_pull_policy=get.text("ELASTICJOB_RUNTIME_PULL_POLICY", default.runtime_pull_policy),
            etcd_tls=get.boolean("ELASTICJOB_ETCD_TLS", default.etcd_tls),
            ca_namespace=get.text("ELASTICJOB_CA_NAMESPACE", ""),
            ca_name=get.text("ELASTICJOB_CA_NAME", default.ca_name),
            endpoint=get.text("ELASTICJOB_RENDEZVOUS_ENDPOINT", ""),
            endpoint_secret=get.namespaced_name("ELASTICJOB_RENDEZVOUS_SECRET"),
            etcd_tiers=_etcd_tiers(get.object("ELASTICJOB_ETCD_TIERS", _TIER_FIELDS)),
            allowed_endpoints=get.patterns("ELASTICJOB_ALLOWED_ENDPOINTS"),
            namespaces=get.words("ELASTICJOB_WATCH_NAMESPACES"),
            topology_labels=get.words("ELASTICJOB_TOPOLOGY_LABELS") or default.topology_labels,
            network_policies=_network_policies(get.object("ELASTICJOB_NETWORK_POLICIES", _POLICY_FIELDS)),
            kueue=get.choice("ELASTICJOB_KUEUE", default.kueue),
            log_format=get.choice("ELASTICJOB_LOG_FORMAT", default.log_format),
            node_lost_seconds=get.number("ELASTICJOB_NODE_LOST_SECONDS", default.node_lost_seconds),
            node_settle_seconds=get.number("ELASTICJOB_NODE_SETTLE_SECONDS", default.node_settle_seconds),
            probe_port=int(get.number("ELASTICJOB_PROBE_PORT", default.probe_port)),
            metrics_authentication=get.boolean("ELASTICJOB_METRICS_AUTHENTICATION", default.metrics_authentication),
            metrics_certificate=get.text("ELASTICJOB_METRICS_CERTIFICATE", ""),
            metrics_port=int(get.number("ELASTICJOB_METRICS_PORT", default.metrics_port)),
            lease_namespace=get.text("ELASTICJOB_LEASE_NAMESPACE", ""),
            lease_name=get.text("ELASTICJOB_LEASE_NAME", default.lease_name),
            lease_identity=get.text("ELASTICJOB_LEASE_IDENTITY", ""),
            lease_seconds=min(300.0, max(2.0, get.number("ELASTICJOB_LEASE_SECONDS", default.lease_seconds))),
            shards=int(get.number("ELASTICJOB_SHARDS", default.shards)),
            workers=max(1, int(get.number("ELASTICJOB_WORKERS", default.workers))),
            progress_status_writes=get.number("ELASTICJOB_PROGRESS_STATUS_WRITES", default.progress_status_writes),
            progress_writes=get.number("ELASTICJOB_PROGRESS_WRITES", default.progress_writes),
            resync_seconds=get.number("ELASTICJOB_RESYNC_SECONDS", default.resync_seconds),
        )
        if not 1 <= settings.shards <= MOST_SHARDS:
            raise SettingsError(f"ELASTICJOB_SHARDS must be from 1 to {MOST_SHARDS}, not {settings.shards}")
        if settings.etcd_tls and not settings.ca_namespace:
            raise SettingsError(
                "ELASTICJOB_CA_NAMESPACE is empty: name the namespace for the Secret with the operator's certificate "
                "authority, such as the operator's own, or turn TLS off with ELASTICJOB_ETCD_TLS=false"
            )
        if settings.endpoint_secret and not settings.endpoint.startswith("https://"):
            raise SettingsError(
                "ELASTICJOB_RENDEZVOUS_SECRET has credentials, which are sent over TLS only: set "
                f"ELASTICJOB_RENDEZVOUS_ENDPOINT to https://host:port instead of {settings.endpoint!r}"
            )
        if settings.etcd_tiers.tiers and not settings.ca_namespace:
            raise SettingsError("ELASTICJOB_ETCD_TIERS needs ELASTICJOB_CA_NAMESPACE: the certificates are made there")
        if settings.endpoint and any(tier.open for tier in settings.etcd_tiers.tiers):
            raise SettingsError(
                "ELASTICJOB_RENDEZVOUS_ENDPOINT and ELASTICJOB_ETCD_TIERS both say which etcd jobs use: remove one of "
                "them, or set open to false for each tier"
            )
        return settings


def _etcd_tiers(given: Mapping[str, Any]) -> EtcdTiers:
    limits = {field: given[key] for key, field in (("maxRuns", "max_runs"), ("maxBytes", "max_bytes")) if key in given}
    try:
        tiers = tuple(EtcdTier(**fields) for fields in given.get("tiers", ()))
    except TypeError as error:
        raise SettingsError(f"ELASTICJOB_ETCD_TIERS: each tier has name, endpoint and open: {error}") from None
    for tier in tiers:
        try:
            insecure = not uses_tls(tier.endpoint)
        except ValueError as error:
            raise SettingsError(f"ELASTICJOB_ETCD_TIERS: {tier.name}: {error}") from None
        if insecure:
            raise SettingsError(f"ELASTICJOB_ETCD_TIERS: {tier.name} needs https://, not {tier.endpoint!r}")
    return EtcdTiers(tiers=tiers, **limits)


def _network_policies(given: Mapping[str, Any]) -> NetworkPolicySettings | None:
    if not given:
        return None
    if missing := [field for field in ("operator", "metricsPort") if field not in given]:
        raise SettingsError(f"ELASTICJOB_NETWORK_POLICIES lacks {' and '.join(missing)}")
    return NetworkPolicySettings(
        operator=tuple(given["operator"]),
        metrics_port=given["metricsPort"],
        metrics_from=tuple(given.get("metricsFrom", ())),
    )


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str, default: str) -> str:
        return self._environment.get(name, "").strip() or default

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(self.text(name, "").replace(",", " ").split())

    def number(self, name: str, default: float) -> float:
        text = self.text(name, "")
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if value < 0:
            raise SettingsError(f"{name} must be a number of at least 0, not {text!r}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise SettingsError(f"{name} must be true or false, not {text!r}")
        return text == "true"

    def object(self, name: str, fields: Mapping[str, type]) -> dict[str, Any]:
        """`fields`: known fields and their types. Empty values are omitted."""
        text = self.text(name, "{}")
        try:
            value = json.loads(text)
        except ValueError as error:
            raise SettingsError(f"{name} must be a JSON object: {error}") from None
        if not isinstance(value, dict) or not all(isinstance(item, fields.get(key, ())) for key, item in value.items()):
            known = ", ".join(f"{key} ({_WORDS[kind]})" for key, kind in fields.items())
            raise SettingsError(f"{name} must be a JSON object with only these fields: {known}; not {text:.200}")
        return {key: item for key, item in value.items() if item}

    def namespaced_name(self, name: str) -> NamespacedName | None:
        text = self.text(name, "")
        namespace, _, rest = text.partition("/")
        if text and not (namespace and rest and "/" not in rest):
            raise SettingsError(f"{name} must be namespace/name, not {text!r}")
        return (namespace, rest) if text else None

    def patterns(self, name: str) -> tuple[Pattern, ...]:
        try:
            return tuple(Pattern.parse(word) for word in self.words(name))
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None

    def choice(self, name: str, default: Choice) -> Choice:
        text = self.text(name, str(default.value))
        try:
            return type(default)(text.lower())
        except ValueError:
            words = " or ".join(str(member.value) for member in type(default))
            raise SettingsError(f"{name} must be {words}, not {text!r}") from None
