"""Which etcds get the operator's certificate, and what a job says if a certificate is not accepted."""

from __future__ import annotations

import dataclasses
import itertools
import ssl

import pytest
from elasticjob_operator.credentials import CredentialsUnusable, EtcdCredentials
from elasticjob_operator.etcd.responses import Untrusted
from elasticjob_operator.etcd.run_watches import RunWatches
from elasticjob_operator.planning import Target
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.etcd import Denied, Unavailable

from tests.unit.operator.etcd.watch_bench import KEY, TARGET, Bench
from tests.unit.operator.waiting import until


@pytest.mark.parametrize(
    ("error", "connectivity"),
    [
        (Untrusted("etcd:2379: its certificate is not trusted: certificate has expired"), Connectivity.UNTRUSTED),
        (Denied("etcd:2379: permission denied"), Connectivity.DENIED),
    ],
)
async def test_a_rejected_certificate_is_told_from_other_refusals(
    bench: Bench, error: Exception, connectivity: Connectivity
) -> None:
    bench.connect_errors = itertools.repeat(error)
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is connectivity and view.error == str(error))


async def test_our_certificate_goes_to_no_endpoint_that_a_user_names() -> None:
    """Even if it is the address of another job's etcd, for which the operator has a connection."""
    asked: list[str] = []

    def tls() -> ssl.SSLContext:
        asked.append("context")
        raise Unavailable("no certificate")

    run_watches = RunWatches(lambda _: None, tls=tls)
    named = Target(endpoint="https://127.0.0.1:1", run_id="named")
    await run_watches.follow(("ml", "named"), named)
    await until(lambda: run_watches.view(("ml", "named")).connectivity is Connectivity.UNREACHABLE)
    assert not asked
    await run_watches.follow(("ml", "own"), dataclasses.replace(named, run_id="own", tls=True))
    await until(lambda: run_watches.view(("ml", "own")).error.endswith("no certificate"))
    assert asked
    assert "no certificate" not in run_watches.view(("ml", "named")).error
    await run_watches.close()


async def test_each_secret_has_a_connection_of_its_own() -> None:
    """A job that names an endpoint gets no connection with credentials that another job, or the operator, has there."""
    read: list[tuple[str, str]] = []

    async def credentials(secret: tuple[str, str]) -> EtcdCredentials:
        read.append(secret)
        raise CredentialsUnusable(f"no {secret[1]}")

    run_watches = RunWatches(lambda _: None, read_secret=credentials)
    named = Target(endpoint="https://127.0.0.1:1", run_id="named")
    await run_watches.follow(("ml", "named"), named)
    await until(lambda: run_watches.view(("ml", "named")).connectivity is Connectivity.UNREACHABLE)
    assert not read
    for job in (("ml", "a"), ("other", "a")):
        secret = (job[0], "etcd")
        await run_watches.follow(job, dataclasses.replace(named, run_id=job[0], secret=secret))
        await until(lambda key=job: run_watches.view(key).connectivity is Connectivity.NO_CREDENTIALS)  # type: ignore[misc]
    assert set(read) == {("ml", "etcd"), ("other", "etcd")}
    assert run_watches.view(("ml", "named")).connectivity is Connectivity.UNREACHABLE
    await run_watches.close()
