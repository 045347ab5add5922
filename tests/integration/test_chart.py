"""What the Helm chart renders, without a cluster."""

from __future__ import annotations

import json

import pytest
from elasticjob_operator.allowed import is_allowed
from elasticjob_operator.settings import Settings
from elasticjob_runtime.etcd import parse_endpoints

from hack.cluster import ClusterError
from tests.integration.chart import CHART, of_kind, rendered

INVALID_VALUES = {
    "rendezvous.endpoint=http://etcd:2379": "/rendezvous/endpoint",
    "rendezvous.secretName=Shared": "/rendezvous/secretName",
    "rendezvous.jobSecretNames={a b}": "/rendezvous/jobSecretNames/0",
    "rendezvous.secretName=shared,rendezvous.endpoint=etcd:2379": "set rendezvous.endpoint to https://host:port",
    "replicaCount=33": "/replicaCount",
    "runtime.digest=latest": "/runtime/digest",
    "runtime.pullPolicy=Sometimes": "/runtime/pullPolicy",
    "leaderElection.leaseSeconds=1": "/leaderElection/leaseSeconds",
    "metrics.serviceMonitor.interval=often": "/metrics/serviceMonitor/interval",
    "logging.format=xml": "/logging/format",
    "metrics.dashboards.labels.a=1": "/metrics/dashboards/labels/a",
    "replicas=1": "'replicas' not allowed",
    "watchNamespaces={Team_A}": "/watchNamespaces/0",
    "rendezvous.allowedEndpoints={a b}": "/rendezvous/allowedEndpoints/0",
    "etcd.affinity=x": "'affinity' not allowed",
    "etcd.mode=shared": "/etcd/mode",
    "etcd.mode=Shared": "needs etcd.tiers",
    "etcd.mode=Shared,etcd.tiers=1,etcd.closedTiers={0}": "needs a tier that takes runs",
    "etcd.mode=Shared,etcd.tiers=1,rendezvous.endpoint=etcd:2379": "remove one of them",
    "etcd.tiers=33": "/etcd/tiers",
    "etcd.tier.maxMiB=8192": "/etcd/tier/maxMiB",
    "resources.limits.memry=1Gi": "'memry' not allowed",
    "resources.limits.memory=much": "/resources/limits/memory",
    "etcd.resources.request.cpu=1": "'request' not allowed",
    "tolerations[0].efect=NoSchedule": "'efect' not allowed",
    "fullnameOverride=Bad_Name": "/fullnameOverride",
    "networkPolicy.jobs.metricsFrom[0].namespace=monitoring": "/networkPolicy/jobs/metricsFrom/0",
    "serviceAccount.create=false": "name the service account to use",
    "metrics.serviceMonitor.enabled=true,metrics.service.enabled=false": "needs metrics.service.enabled",
}
"""--set -> what helm says."""


@pytest.mark.parametrize("setting", INVALID_VALUES)
def test_an_invalid_value_is_rejected_by_name(setting: str) -> None:
    with pytest.raises(ClusterError) as caught:
        rendered(setting)
    assert INVALID_VALUES[setting] in str(caught.value)


def test_values_reach_the_operator() -> None:
    objects = rendered(
        "etcdImage=own/etcd:1", "rendezvous.endpoint=etcd:2379", "watchNamespaces={a,b}", "logging.format=plain"
    )
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {
        variable["name"]: variable.get("value") or variable["valueFrom"]["fieldRef"]["fieldPath"]
        for variable in container["env"]
    } == {
        "ELASTICJOB_ETCD_IMAGE": "own/etcd:1",
        "ELASTICJOB_RUNTIME_IMAGE": "elasticjob-runtime:0.1.0",
        "ELASTICJOB_RUNTIME_PULL_POLICY": "IfNotPresent",
        "ELASTICJOB_RENDEZVOUS_ENDPOINT": "etcd:2379",
        "ELASTICJOB_NETWORK_POLICIES": (
            '{"metricsFrom":[],"metricsPort":9100,"operator":[{"namespaceSelector":{"matchLabels":'
            '{"kubernetes.io/metadata.name":"system"}},"podSelector":{"matchLabels":{"app.kubernetes.io/component":'
            '"operator","app.kubernetes.io/instance":"ej","app.kubernetes.io/name":"elasticjob"}}}]}'
        ),
        "ELASTICJOB_WATCH_NAMESPACES": "a,b",
        "ELASTICJOB_ETCD_TLS": "true",
        "ELASTICJOB_CA_NAMESPACE": "system",
        "ELASTICJOB_CA_NAME": "ej-elasticjob-ca",
        "ELASTICJOB_ETCD_POD": (
            '{"imagePullSecrets":[],"nodeSelector":{},"priorityClassName":"","resources":{},"tolerations":[]}'
        ),
        "ELASTICJOB_NODE_LOST_SECONDS": "5",
        "ELASTICJOB_PROGRESS_STATUS_WRITES": "20",
        "ELASTICJOB_PROGRESS_WRITES": "100",
        "ELASTICJOB_KUEUE": "auto",
        "ELASTICJOB_LOG_FORMAT": "plain",
        "ELASTICJOB_PROBE_PORT": "8080",
        "ELASTICJOB_METRICS_AUTHENTICATION": "false",
        "ELASTICJOB_LEASE_NAMESPACE": "system",
        "ELASTICJOB_LEASE_NAME": "ej-elasticjob",
        "ELASTICJOB_LEASE_IDENTITY": "metadata.name",
        "ELASTICJOB_LEASE_SECONDS": "4",
        "ELASTICJOB_SHARDS": "1",
    }


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        (("runtime.repository=own/runtime", "runtime.tag=1.2"), "own/runtime:1.2"),
        (("runtime.tag=1.2", f"runtime.digest=sha256:{'a' * 64}"), f"elasticjob-runtime@sha256:{'a' * 64}"),
        (("runtime.repository=",), None),
    ],
)
def test_the_runtime_image_is_given_by_tag_or_digest_or_not_at_all(
    settings: tuple[str, ...], image: str | None
) -> None:
    (deployment,) = of_kind(rendered(*settings), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables.get("ELASTICJOB_RUNTIME_IMAGE") == image


def test_allowed_endpoints_and_etcd_scheduling_reach_the_operator() -> None:
    objects = rendered(
        "rendezvous.allowedEndpoints={*.infra.svc,10.0.0.0/8}",
        "etcd.nodeSelector.pool=infra",
        "etcd.tolerations[0].key=gpu",
        "etcd.resources.limits.memory=256Mi",
    )
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = Settings.from_environment({variable["name"]: variable.get("value", "") for variable in container["env"]})
    assert settings.etcd_pod == {
        "nodeSelector": {"pool": "infra"},
        "resources": {"limits": {"memory": "256Mi"}},
        "tolerations": [{"key": "gpu"}],
    }
    assert is_allowed("etcd.infra.svc:2379", settings.allowed_endpoints)
    assert not is_allowed("192.168.1.1:2379", settings.allowed_endpoints)


def test_with_named_namespaces_only_nodes_and_kinds_of_kueue_are_read_cluster_wide() -> None:
    objects = rendered("watchNamespaces={a,b}", "rbac.aggregateToUserRoles=false")
    assert {item["metadata"]["namespace"] for item in of_kind(objects, "Role", "RoleBinding")} == {
        "a",
        "b",
        "system",
        "kube-node-lease",
    }
    own = [item for item in of_kind(objects, "Role") if item["metadata"]["namespace"] == "system"]
    assert {resource for item in own for rule in item["rules"] for resource in rule["resources"]} == {
        "leases",
        "secrets",
    }
    bound = {
        item["roleRef"]["name"]
        for item in of_kind(objects, "ClusterRoleBinding")
        if item["subjects"][0]["namespace"] == "system"
    }
    roles = [role for role in of_kind(objects, "ClusterRole") if role["metadata"]["name"] in bound]
    read = ["get", "list", "watch"]
    assert [rule for role in roles for rule in role["rules"]] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": read},
        {
            "apiGroups": ["kueue.x-k8s.io"],
            "resources": ["resourceflavors", "workloadpriorityclasses"],
            "verbs": read,
        },
        {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": read},
    ]
    none = ("rbac.readNodes=false", "rbac.aggregateToUserRoles=false", "queueing.kueue=Off")
    assert of_kind(rendered("watchNamespaces={a}", *none), "ClusterRole") == []


def test_two_replicas_are_disrupted_one_at_a_time_and_a_single_one_never_blocks_a_drain() -> None:
    (budget,) = of_kind(rendered("replicaCount=2"), "PodDisruptionBudget")
    (deployment,) = of_kind(rendered("replicaCount=2"), "Deployment")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert budget["spec"]["maxUnavailable"] == 1
    assert of_kind(rendered(), "PodDisruptionBudget") == []
    assert of_kind(rendered("replicaCount=2", "podDisruptionBudget.enabled=false"), "PodDisruptionBudget") == []


def test_the_metrics_service_and_monitor_select_the_operators_port() -> None:
    objects = rendered("metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus")
    (service,), (monitor,), (deployment,) = (
        of_kind(objects, kind) for kind in ("Service", "ServiceMonitor", "Deployment")
    )
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert {port["name"] for port in template["spec"]["containers"][0]["ports"]} == {
        service["spec"]["ports"][0]["targetPort"]
    }
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert "bearerTokenFile" not in monitor["spec"]["endpoints"][0]


def test_prometheus_sends_its_token_where_metrics_require_one() -> None:
    (monitor,) = of_kind(
        rendered("metrics.serviceMonitor.enabled=true", "metrics.authentication=true"), "ServiceMonitor"
    )
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"


def test_metrics_with_tls_have_a_port_of_their_own_everywhere() -> None:
    objects = rendered("metrics.tls.secretName=certificate", "metrics.serviceMonitor.enabled=true")
    (service,), (monitor,), (deployment,) = (
        of_kind(objects, kind) for kind in ("Service", "ServiceMonitor", "Deployment")
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    (port,) = [port for port in container["ports"] if port["name"] == "metrics"]
    assert variables["ELASTICJOB_METRICS_PORT"] == str(port["containerPort"])
    (mount,) = [
        volume_mount for volume_mount in container["volumeMounts"] if volume_mount["name"] == "metrics-certificate"
    ]
    assert mount["mountPath"] == variables["ELASTICJOB_METRICS_CERTIFICATE"]
    assert {volume["name"] for volume in pod["volumes"] if "secret" in volume} == {"metrics-certificate"}
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http", "metrics"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["scheme"]) == ("metrics", "https")
    assert endpoint["tlsConfig"]["serverName"] == f"{service['metadata']['name']}.system.svc"
    assert of_kind(rendered("metrics.service.enabled=false"), "Service") == []
    assert of_kind(rendered(), "ServiceMonitor") == []


def test_dashboards_are_config_maps_that_grafanas_sidecar_finds() -> None:
    assert not [item for item in of_kind(rendered(), "ConfigMap") if "dashboard" in item["metadata"]["name"]]
    found = of_kind(
        rendered("metrics.dashboards.enabled=true", "metrics.dashboards.annotations.grafana_folder=ElasticJob"),
        "ConfigMap",
    )
    written = {f"elasticjob-{path.name}": path for path in (CHART / "dashboards").glob("*.json")}
    data = {name: text for item in found for name, text in item["data"].items()}
    assert data.keys() == written.keys()
    for item in found:
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "ElasticJob"}
        assert item["metadata"]["namespace"] == "system"
    for name, path in written.items():
        assert json.loads(data[name]) == json.loads(path.read_text(encoding="utf-8"))


def test_dashboards_can_be_put_where_grafana_runs() -> None:
    settings = ("metrics.dashboards.enabled=true", "metrics.dashboards.namespace=monitoring")
    assert {item["metadata"]["namespace"] for item in of_kind(rendered(*settings), "ConfigMap")} == {"monitoring"}


def test_tiers_reach_the_operator_as_the_chart_runs_them() -> None:
    objects = rendered("etcd.mode=Shared", "etcd.tiers=2", "etcd.closedTiers={1}", "etcd.tier.maxRuns=7")
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    found = Settings.from_environment(environment).etcd_tiers
    assert [(tier.name, tier.open) for tier in found.tiers] == [
        ("ej-elasticjob-tier-0", True),
        ("ej-elasticjob-tier-1", False),
    ]
    assert (found.max_runs, found.max_bytes) == (7, 1 << 30)
    services = {item["metadata"]["name"] for item in of_kind(objects, "Service")}
    for tier, stateful_set in zip(found.tiers, of_kind(objects, "StatefulSet"), strict=True):
        peers = stateful_set["spec"]["serviceName"]
        assert {tier.name, peers} <= services
        pods = [f"{tier.name}-{number}.{peers}" for number in range(stateful_set["spec"]["replicas"])]
        hosts = [endpoint.host for endpoint in parse_endpoints(tier.endpoint)]
        assert hosts == [f"{host}.system.svc" for host in (tier.name, *pods)]
        (volume,) = stateful_set["spec"]["template"]["spec"]["volumes"]
        assert volume["secret"]["secretName"] == tier.name
        assert not {"username", "password", "peer-ca.key"} & {item["key"] for item in volume["secret"]["items"]}


def test_tiers_stay_with_an_etcd_per_job_until_no_run_is_left_in_them() -> None:
    objects = rendered("etcd.tiers=1")
    assert len(of_kind(objects, "StatefulSet")) == 1
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (text,) = (variable["value"] for variable in container["env"] if variable["name"] == "ELASTICJOB_ETCD_TIERS")
    assert [tier["open"] for tier in json.loads(text)["tiers"]] == [False]
