from __future__ import annotations

import pytest
from elasticjob_operator.settings import EtcdTier, EtcdTiers, LogFormat, NetworkPolicySettings, Settings, SettingsError


def test_an_empty_environment_gives_the_defaults_but_for_the_ca() -> None:
    assert Settings.from_environment({"ELASTICJOB_CA_NAMESPACE": "operators"}) == Settings(ca_namespace="operators")
    empty = {"ELASTICJOB_WATCH_NAMESPACES": "", "ELASTICJOB_NODE_LOST_SECONDS": " ", "ELASTICJOB_ETCD_TLS": "False"}
    assert Settings.from_environment(empty) == Settings(etcd_tls=False)


def test_every_variable_is_read() -> None:
    found = Settings.from_environment(
        {
            "ELASTICJOB_ETCD_IMAGE": "etcd:1",
            "ELASTICJOB_ETCD_TLS": "true",
            "ELASTICJOB_CA_NAMESPACE": "operators",
            "ELASTICJOB_CA_NAME": "our-ca",
            "ELASTICJOB_RENDEZVOUS_ENDPOINT": "etcd:2379",
            "ELASTICJOB_WATCH_NAMESPACES": "a, b",
            "ELASTICJOB_NETWORK_POLICIES": '{"operator": [{"podSelector": {}}], "metricsPort": 9100}',
            "ELASTICJOB_LOG_FORMAT": "JSON",
            "ELASTICJOB_NODE_LOST_SECONDS": "7.5",
            "ELASTICJOB_PROBE_PORT": "8081",
            "ELASTICJOB_METRICS_AUTHENTICATION": "True",
            "ELASTICJOB_WORKERS": "3",
            "ELASTICJOB_PROGRESS_STATUS_WRITES": "5",
            "ELASTICJOB_PROGRESS_WRITES": "50",
            "ELASTICJOB_RESYNC_SECONDS": "30",
        }
    )
    assert found == Settings(
        etcd_image="etcd:1",
        ca_namespace="operators",
        ca_name="our-ca",
        endpoint="etcd:2379",
        namespaces=("a", "b"),
        network_policies=NetworkPolicySettings(operator=({"podSelector": {}},), metrics_port=9100),
        log_format=LogFormat.JSON,
        node_lost_seconds=7.5,
        probe_port=8081,
        metrics_authentication=True,
        workers=3,
        progress_status_writes=5,
        progress_writes=50,
        resync_seconds=30,
    )


ONE_TIER = '{"tiers": [{"name": "t0", "endpoint": "https://t0:2379"}]}'


def test_tiers_are_read_and_their_secrets_are_the_operators_own() -> None:
    text = '{"tiers": [{"name": "t0", "endpoint": "https://t0:2379", "open": false}], "maxRuns": 7, "maxBytes": 8}'
    found = Settings.from_environment({"ELASTICJOB_CA_NAMESPACE": "ops", "ELASTICJOB_ETCD_TIERS": text})
    tier = EtcdTier(name="t0", endpoint="https://t0:2379", open=False)
    assert found.etcd_tiers == EtcdTiers(tiers=(tier,), max_runs=7, max_bytes=8)
    assert ("ops", "t0") in found.own_secrets


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"ELASTICJOB_CA_NAMESPACE": "", "ELASTICJOB_ETCD_TLS": "false"}, "needs ELASTICJOB_CA_NAMESPACE"),
        ({"ELASTICJOB_RENDEZVOUS_ENDPOINT": "etcd:2379"}, "both say which etcd jobs use"),
        ({"ELASTICJOB_ETCD_TIERS": ONE_TIER.replace("https://", "")}, "t0 needs https://, not 't0:2379'"),
        ({"ELASTICJOB_ETCD_TIERS": ONE_TIER.replace("t0:2379", "")}, "ELASTICJOB_ETCD_TIERS: t0: "),
        ({"ELASTICJOB_ETCD_TIERS": ONE_TIER.replace("name", "nam")}, "each tier has name, endpoint and open"),
        ({"ELASTICJOB_ETCD_TIERS": '{"tiers": ["t0"]}'}, "each tier has name, endpoint and open"),
    ],
)
def test_tiers_that_cannot_be_used_are_rejected(more: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({"ELASTICJOB_CA_NAMESPACE": "ops", "ELASTICJOB_ETCD_TIERS": ONE_TIER, **more})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ELASTICJOB_NODE_LOST_SECONDS", "soon"),
        ("ELASTICJOB_PROBE_PORT", "-1"),
        ("ELASTICJOB_LOG_FORMAT", "xml"),
        ("ELASTICJOB_METRICS_AUTHENTICATION", "yes"),
        ("ELASTICJOB_NETWORK_POLICIES", "true"),
        ("ELASTICJOB_NETWORK_POLICIES", '{"metricsPort": 9100}'),
        ("ELASTICJOB_NETWORK_POLICIES", '{"operator": [{}], "metricsPort": "9100"}'),
        ("ELASTICJOB_ETCD_TLS", "yes"),
    ],
)
def test_an_invalid_value_is_reported_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_environment({name: value})


def test_tls_needs_a_namespace_for_the_certificate_authority() -> None:
    with pytest.raises(SettingsError, match="ELASTICJOB_CA_NAMESPACE is empty: name the namespace"):
        Settings.from_environment({})


def test_the_secret_for_the_shared_etcd_is_named_with_its_namespace() -> None:
    environment = {
        "ELASTICJOB_CA_NAMESPACE": "system",
        "ELASTICJOB_RENDEZVOUS_ENDPOINT": "https://etcd:2379",
        "ELASTICJOB_RENDEZVOUS_SECRET": "system/shared-etcd",
    }
    settings = Settings.from_environment(environment)
    assert settings.endpoint_secret == ("system", "shared-etcd")
    assert settings.own_secrets == {("system", "shared-etcd"), ("system", "elasticjob-ca")}


@pytest.mark.parametrize(
    ("endpoint", "secret", "words"),
    [
        ("https://etcd:2379", "shared-etcd", "ELASTICJOB_RENDEZVOUS_SECRET must be namespace/name"),
        ("etcd:2379", "system/shared-etcd", "sent over TLS only: set ELASTICJOB_RENDEZVOUS_ENDPOINT to https://"),
        ("", "system/shared-etcd", "sent over TLS only: set ELASTICJOB_RENDEZVOUS_ENDPOINT to https://"),
    ],
)
def test_credentials_without_tls_stop_the_operator_at_its_start(endpoint: str, secret: str, words: str) -> None:
    environment = {
        "ELASTICJOB_CA_NAMESPACE": "system",
        "ELASTICJOB_RENDEZVOUS_ENDPOINT": endpoint,
        "ELASTICJOB_RENDEZVOUS_SECRET": secret,
    }
    with pytest.raises(SettingsError, match=words):
        Settings.from_environment(environment)
