"""What the operator's benchmark reads from /metrics."""

from __future__ import annotations

import pytest

from benchmarks.operator.process import difference, quantile, requests

BUCKETS = {
    'x_bucket{le="0.1"}': 50.0,
    'x_bucket{le="1.0"}': 90.0,
    'x_bucket{le="10.0"}': 100.0,
    'x_bucket{le="+Inf"}': 100.0,
}


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.1), (0.9, 1.0), (0.99, 9.1), (0.25, 0.05)])
def test_a_quantile_is_linear_within_a_bucket(share: float, seconds: float) -> None:
    assert quantile(BUCKETS, "x", share) == pytest.approx(seconds)


def test_a_quantile_beyond_the_last_bucket_is_unknown() -> None:
    assert quantile({'x_bucket{le="1.0"}': 1.0, 'x_bucket{le="+Inf"}': 10.0}, "x", 0.99) == float("inf")
    assert quantile({}, "x", 0.99) == 0.0


def test_requests_are_summed_over_codes_without_watches() -> None:
    def sample(code: int, verb: str, resource: str = "pods") -> str:
        return f'elasticjob_api_requests_total{{code="{code}",resource="{resource}",verb="{verb}"}}'

    samples = {
        sample(201, "create"): 5.0,
        sample(409, "create"): 1.0,
        sample(200, "watch"): 3.0,
        sample(200, "patch", "elasticjobs/status"): 2.0,
    }
    assert requests(samples) == {"create pods": 6.0, "patch elasticjobs/status": 2.0}
    assert requests(difference(samples, samples)) == {}
