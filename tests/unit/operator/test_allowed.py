from __future__ import annotations

import pytest
from elasticjob_api import ConditionType, ElasticJob, RendezvousStatus
from elasticjob_api.rendezvous import Rendezvous
from elasticjob_operator import names
from elasticjob_operator.allowed import Pattern, is_allowed
from elasticjob_operator.planning import CreatePod, plan
from elasticjob_operator.policies.lifecycle import RunTemplate
from elasticjob_operator.policies.rendezvous import rendezvous_of
from elasticjob_operator.settings import Settings, SettingsError
from elasticjob_operator.state import JobState

from tests.unit.operator.builders import NOW, make_job, make_pod, rendezvous_at

LIST = ("etcd.infra.svc:2379", "*.etcd.example.com", "10.0.0.0/8", "192.168.1.1:2379", "[fd00::/8]:2379")


def patterns(*texts: str) -> tuple[Pattern, ...]:
    return tuple(map(Pattern.parse, texts))


@pytest.mark.parametrize(
    "endpoint",
    [
        "etcd.infra.svc:2379",
        "ETCD.infra.svc:2379",
        "a.b.etcd.example.com:1",
        "10.255.0.1:9999",
        "192.168.1.1:2379",
        "[fd00::1]:2379",
        "https://a.etcd.example.com:2379",
        "10.0.0.1:1,10.0.0.2:1",
        "[::ffff:10.0.0.1]:2379",
    ],
)
def test_an_endpoint_that_matches_a_pattern_is_allowed(endpoint: str) -> None:
    assert is_allowed(endpoint, patterns(*LIST))


@pytest.mark.parametrize(
    "endpoint",
    [
        "etcd.infra.svc:2380",
        "etcd.infra.svc.evil.com:2379",
        "etcd.example.com:1",
        "x.etcd.example.com.evil.com:1",
        "11.0.0.1:2379",
        "192.168.1.1:2380",
        "[fe80::1]:2379",
        "10.0.0.1:1,11.0.0.1:1",
        "0x0a000001:2379",
        "167772161:2379",
        "10.1:2379",
        "[::ffff:11.0.0.1]:2379",
        "",
        "http://",
        "a@10.0.0.1:1",
    ],
)
def test_any_other_endpoint_is_not_allowed(endpoint: str) -> None:
    assert not is_allowed(endpoint, patterns(*LIST))


def test_an_ip_address_does_not_match_a_name_pattern() -> None:
    assert not is_allowed("10.0.0.1:2379", patterns("10.0.0.*x", "*.1"))
    assert is_allowed("10.0.0.1:2379", patterns("*"))


def test_without_patterns_any_endpoint_is_allowed() -> None:
    assert is_allowed("169.254.169.254:80", ())


@pytest.mark.parametrize(
    "text", ["10.0.0.0/33", "a b", "etcd:port", "etcd:99999", "etcd:0", "http://etcd", "10.0.0.", "", "etcd/8"]
)
def test_an_invalid_pattern_is_a_settings_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|port"):
        Pattern.parse(text)
    if text and " " not in text:
        with pytest.raises(SettingsError, match="ELASTICJOB_ALLOWED_ENDPOINTS"):
            Settings.from_environment({"ELASTICJOB_ALLOWED_ENDPOINTS": text})


SETTINGS = Settings(endpoint="default:2379", allowed_endpoints=patterns(*LIST))


def test_a_job_with_a_forbidden_endpoint_is_rejected_and_nothing_is_created() -> None:
    job = make_job(spec={"rendezvous": {"type": "External", "endpoint": "169.254.169.254:80"}})
    decided = plan(job, JobState(nodes=None), SETTINGS, NOW)
    accepted, ready = (
        decided.status.condition(item) for item in (ConditionType.ACCEPTED, ConditionType.RENDEZVOUS_READY)
    )
    assert accepted is not None
    assert ready is not None
    assert (accepted.status, accepted.reason, ready.status, ready.reason) == (
        "False",
        "EndpointNotAllowed",
        "False",
        "EndpointNotAllowed",
    )
    assert "169.254.169.254:80" in accepted.message
    assert decided.status.summary == "EndpointNotAllowed"
    assert decided.target is None
    assert not [action for action in decided.actions if isinstance(action, CreatePod)]


def test_a_running_job_with_a_forbidden_endpoint_is_left_alone_and_not_watched() -> None:
    job = make_job(spec={"rendezvous": {"type": "External", "endpoint": "169.254.169.254:80"}})
    pods = tuple(make_pod(index, ready=True) for index in range(4))
    decided = plan(job, JobState(pods=pods, nodes=None), SETTINGS, NOW)
    assert decided.target is None
    assert not [action for action in decided.actions if type(action).__name__.startswith("Delete")]


@pytest.mark.parametrize("endpoint", ["", "default:2379", "digits-etcd.ml.svc:2379", "10.1.2.3:2379"])
def test_the_operators_default_and_managed_etcds_need_not_be_listed(endpoint: str) -> None:
    job = make_job(spec={"rendezvous": rendezvous_at(endpoint)})
    pods = tuple(make_pod(index, ready=True) for index in range(4))
    assert plan(job, JobState(pods=pods, nodes=None), SETTINGS, NOW).target is not None


def with_endpoint(job: ElasticJob, endpoint: str, *, suspend: bool) -> ElasticJob:
    """As a user edits it."""
    spec = job.spec.model_copy(
        update={
            "suspend": suspend,
            "rendezvous": Rendezvous.model_validate(rendezvous_at(endpoint)),
        }
    )
    return job.model_copy(update={"spec": spec})


def test_a_forbidden_endpoint_never_becomes_the_runs_own() -> None:
    """Rejected, then removed from the spec while the job is suspended, then resumed: it once was in status by then."""
    settings = Settings(allowed_endpoints=patterns(*LIST))
    job = make_job(spec={"rendezvous": {"type": "External", "endpoint": "169.254.169.254:80"}})
    for edit in (
        job,
        with_endpoint(job, "", suspend=True),
        with_endpoint(job, "", suspend=False),
        with_endpoint(job, "", suspend=False),
    ):
        decided = plan(edit.model_copy(update={"status": job.status}), JobState(nodes=None), settings, NOW)
        job = edit.model_copy(update={"status": decided.status})
        assert decided.status.rendezvous is None or "169.254" not in decided.status.rendezvous.endpoint
        assert decided.target is None or "169.254" not in decided.target.endpoint
    assert rendezvous_of(job, settings).managed


def test_a_forbidden_endpoint_in_status_is_not_used() -> None:
    """An earlier operator wrote it."""
    job = make_job()
    status = RendezvousStatus(id=names.run_id(job.uid, 1), backend="etcd-v3", endpoint="169.254.169.254:80")
    job = job.model_copy(update={"status": job.status.model_copy(update={"rendezvous": status})})
    assert plan(job, JobState(nodes=None), SETTINGS, NOW).target is None


@pytest.mark.parametrize("named", ["digits-etcd.ml.svc:2379", "https://digits-etcd.ml.svc:2379"])
@pytest.mark.parametrize("tls", [False, True])
def test_naming_the_jobs_own_etcd_does_not_choose_whether_it_uses_tls(named: str, *, tls: bool) -> None:
    settings = Settings(etcd_tls=tls)
    job = make_job(spec={"rendezvous": {"type": "External", "endpoint": named}})
    rendezvous = rendezvous_of(job, settings)
    assert (rendezvous.managed, rendezvous.tls, rendezvous.run) == (True, tls, 1)
    written = rendezvous.to_status("etcd-v3", RunTemplate(label="", hash="", generation=1))
    status = job.status.model_copy(update={"rendezvous": written})
    again = rendezvous_of(job.model_copy(update={"status": status}), settings)
    assert (again.endpoint, again.run) == (rendezvous.endpoint, 1), "it is not moved"
