"""Which credentials go where, and what a job says if they are not accepted."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import Reason, RendezvousStatus
from elasticjob_operator.policies.etcd_access import NO_ACCESS, EtcdAccess, access_of, remedy, waits_for_etcd
from elasticjob_operator.policies.rendezvous import rendezvous_of
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import SpecValue

from tests.unit.operator.builders import UID, make_job, make_status, make_view, rendezvous_at
from tests.unit.operator.tables import table

SHARED_ENDPOINT, SHARED_SECRET = "https://etcd.infra.svc:2379", ("elasticjob-system", "shared-etcd")
SHARED = Settings(endpoint=SHARED_ENDPOINT, endpoint_secret=SHARED_SECRET, ca_namespace="elasticjob-system")
WITHOUT_SECRET = Settings(endpoint=SHARED_ENDPOINT)
MINE = "https://etcd.example.com:2379"

RUN_USER = EtcdAccess(secret=SHARED_SECRET, mounted=f"digits-rendezvous-{UID[:8]}-1", user=f"elasticjob-{UID}-1")
OWN_SECRET = EtcdAccess(secret=("ml", "mine"), mounted="mine")


@table(
    "rendezvous, settings, expected",
    {
        "the job's own etcd": ({}, Settings(), NO_ACCESS),
        "the shared etcd: a user of the run": ({}, SHARED, RUN_USER),
        "a shared etcd without credentials": ({}, WITHOUT_SECRET, NO_ACCESS),
        "its address, named by the job": (rendezvous_at(SHARED_ENDPOINT), SHARED, RUN_USER),
        "shared credentials go to no endpoint that a user names": (rendezvous_at(MINE), SHARED, NO_ACCESS),
        "the job's own Secret": ({**rendezvous_at(MINE), "secretName": "mine"}, SHARED, OWN_SECRET),
        "its own, for the shared etcd": ({**rendezvous_at(SHARED_ENDPOINT), "secretName": "mine"}, SHARED, OWN_SECRET),
    },
)
def test_credentials_go_only_to_the_endpoint_that_they_were_named_with(
    rendezvous: dict[str, Any], settings: Settings, expected: EtcdAccess
) -> None:
    assert rendezvous_of(make_job(spec={"rendezvous": rendezvous}), settings).access == expected


def test_another_default_endpoint_takes_the_shared_credentials_from_runs_at_the_old_one() -> None:
    """The old address is no longer the administrator's; the job goes on, and its agents keep the user of their run."""
    known = RendezvousStatus(id=f"{UID}-1", endpoint="https://old:2379")
    found = rendezvous_of(make_job(status=make_status(rendezvous=known)), SHARED)
    assert (found.endpoint, found.access) == ("https://old:2379", NO_ACCESS)


def test_a_new_run_has_a_new_user() -> None:
    users = {access_of(make_job(), SHARED, SHARED_ENDPOINT, run).user for run in (1, 2)}
    assert users == {f"elasticjob-{UID}-1", f"elasticjob-{UID}-2"}


@pytest.mark.parametrize(("namespace", "name"), [SHARED_SECRET, ("elasticjob-system", "elasticjob-ca")])
def test_a_job_cannot_name_a_secret_of_the_operator(namespace: str, name: str) -> None:
    """Even in the operator's own namespace: its content would go to an endpoint of the user."""
    job = make_job(spec={"rendezvous": {"type": "External", "endpoint": MINE, "secretName": name}})
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    found = rendezvous_of(job, SHARED)
    assert (found.access.allowed, found.access.secret, found.followed) == (False, None, False)


SPEC = SpecValue(min=1, max=1)


@table(
    "access, view, round_number, held",
    {
        "no credentials: pods do not wait": (NO_ACCESS, make_view(Connectivity.UNREACHABLE), 0, False),
        "not connected yet": (OWN_SECRET, make_view(Connectivity.CONNECTING), 0, True),
        "rejected: every agent would fail": (OWN_SECRET, make_view(Connectivity.DENIED), 0, True),
        "no Secret": (OWN_SECRET, make_view(Connectivity.NO_CREDENTIALS), 0, True),
        "accepted": (OWN_SECRET, make_view(), 0, False),
        "a job that trains does not wait": (OWN_SECRET, make_view(Connectivity.UNREACHABLE), 3, False),
        "a user is created after the first key of its run": (RUN_USER, make_view(spec=None), 0, True),
        "the user can be created": (RUN_USER, make_view(spec=SPEC), 0, False),
        "it cannot be checked": (RUN_USER, make_view(Connectivity.UNREACHABLE, spec=SPEC), 3, True),
    },
)
def test_worker_pods_wait_until_etcd_has_accepted_the_credentials(
    access: EtcdAccess, view: Any, round_number: int, held: bool
) -> None:
    job = make_job(status=make_status(round=round_number))
    found = waits_for_etcd(job, access, view, MINE)
    assert (found is not None) is held
    if found is not None:
        assert found.reason is Reason.WAITING_FOR_ETCD
        assert MINE in found.message


OF_SHARED, OF_MINE = "Secret elasticjob-system/shared-etcd", "Secret ml/mine"
NOT_TRUSTED = "its certificate is not trusted: self-signed certificate in certificate chain"
NOT_ACCEPTED = "it does not accept the operator's certificate: TLSV13_ALERT_CERTIFICATE_REQUIRED"


@pytest.mark.parametrize(
    ("access", "connectivity", "error", "words"),
    [
        (OWN_SECRET, Connectivity.UNTRUSTED, NOT_TRUSTED, f"into ca.crt of {OF_MINE}"),
        (RUN_USER, Connectivity.UNTRUSTED, NOT_TRUSTED, f"into ca.crt of {OF_SHARED}"),
        (NO_ACCESS, Connectivity.UNTRUSTED, NOT_TRUSTED, "ca.crt of a Secret that spec.rendezvous.secretName names"),
        (OWN_SECRET, Connectivity.UNTRUSTED, NOT_ACCEPTED, f"into tls.crt and tls.key of {OF_MINE}"),
        (OWN_SECRET, Connectivity.DENIED, "authentication failed", f"Check username and password in {OF_MINE}"),
        (OWN_SECRET, Connectivity.DENIED, "permission denied", "ROLE readwrite --prefix=true /elasticjob/"),
        (RUN_USER, Connectivity.DENIED, "permission denied", f"Give the user in {OF_SHARED} the role root"),
        (OWN_SECRET, Connectivity.DENIED, "authentication is not enabled", "or remove username and password"),
        (RUN_USER, Connectivity.DENIED, "authentication is not enabled", "every pod could change the keys"),
        (NO_ACCESS, Connectivity.DENIED, "user name is empty", "put username and password into a Secret that"),
        (OWN_SECRET, Connectivity.DENIED, "database space exceeded", ""),
    ],
)
def test_each_rejection_has_a_remedy(access: EtcdAccess, connectivity: Connectivity, error: str, words: str) -> None:
    found = remedy(access, make_view(connectivity, error=f"{MINE}: {error}"), managed=False)
    assert words in found
    assert bool(found) is bool(words)
