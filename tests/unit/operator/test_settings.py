from __future__ import annotations

import pytest
from elasticjob_operator.settings import LogFormat, NetworkPolicySettings, Settings, SettingsError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_environment({}) == Settings()
    assert (
        Settings.from_environment({"ELASTICJOB_WATCH_NAMESPACES": "", "ELASTICJOB_NODE_LOST_SECONDS": " "})
        == Settings()
    )


def test_every_variable_is_read() -> None:
    found = Settings.from_environment(
        {
            "ELASTICJOB_ETCD_IMAGE": "etcd:1",
            "ELASTICJOB_RENDEZVOUS_ENDPOINT": "etcd:2379",
            "ELASTICJOB_WATCH_NAMESPACES": "a, b",
            "ELASTICJOB_NETWORK_POLICIES": '{"operator": [{"podSelector": {}}], "metricsPort": 9100}',
            "ELASTICJOB_LOG_FORMAT": "JSON",
            "ELASTICJOB_NODE_LOST_SECONDS": "7.5",
            "ELASTICJOB_STUCK_SECONDS": "60",
            "ELASTICJOB_PROBE_PORT": "8081",
            "ELASTICJOB_WORKERS": "3",
            "ELASTICJOB_RESYNC_SECONDS": "30",
        }
    )
    assert found == Settings(
        etcd_image="etcd:1",
        endpoint="etcd:2379",
        namespaces=("a", "b"),
        network_policies=NetworkPolicySettings(operator=({"podSelector": {}},), metrics_port=9100),
        log_format=LogFormat.JSON,
        node_lost_seconds=7.5,
        stuck_seconds=60,
        probe_port=8081,
        workers=3,
        resync_seconds=30,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ELASTICJOB_NODE_LOST_SECONDS", "soon"),
        ("ELASTICJOB_PROBE_PORT", "-1"),
        ("ELASTICJOB_LOG_FORMAT", "xml"),
        ("ELASTICJOB_NETWORK_POLICIES", "true"),
        ("ELASTICJOB_NETWORK_POLICIES", '{"metricsPort": 9100}'),
        ("ELASTICJOB_NETWORK_POLICIES", '{"operator": [{}], "metricsPort": "9100"}'),
    ],
)
def test_an_invalid_value_is_reported_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_environment({name: value})
