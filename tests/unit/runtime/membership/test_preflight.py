"""Which checks a member fails before it joins, and which of them say more about the check than about the machine."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import PreflightValue
from elasticjob_runtime.membership.preflight import judge, waits


def report(command: str = "", **measured: float) -> PreflightValue:
    return PreflightValue(failed={"command": command} if command else {}, measured=measured)


GOOD, BAD = report(compute=0.1, etcd=0.002, accelerators=8.0), report("exit code 3")
SLOW = report(compute=0.5, etcd=0.002, accelerators=8.0)


@pytest.mark.parametrize(
    ("own", "others", "failed", "distrusted"),
    [
        pytest.param(GOOD, [], {}, {}, id="alone"),
        pytest.param(GOOD, [GOOD, GOOD], {}, {}, id="as the others"),
        pytest.param(BAD, [], {"command": "exit code 3"}, {}, id="fails alone: no other report speaks against it"),
        pytest.param(BAD, [GOOD], {"command": "exit code 3"}, {}, id="half of two"),
        pytest.param(BAD, [BAD, GOOD, GOOD], {"command": "exit code 3"}, {}, id="half of four"),
        pytest.param(
            BAD,
            [BAD, GOOD],
            {},
            {"command": "exit code 3; 2 of 3 members fail this check, so it is ignored"},
            id="most fail it",
        ),
        pytest.param(
            BAD,
            [BAD],
            {},
            {"command": "exit code 3; 2 of 2 members fail this check, so it is ignored"},
            id="all fail it",
        ),
        pytest.param(SLOW, [GOOD], {}, {}, id="one other is too few to compare with"),
        pytest.param(
            SLOW, [GOOD, GOOD], {"compute": "0.5 s, median of the others 0.1 s"}, {}, id="three times slower is suspect"
        ),
        pytest.param(GOOD, [SLOW, GOOD], {}, {}, id="the others are slow"),
        pytest.param(report(compute=0.29), [GOOD, GOOD], {}, {}, id="a busy machine is not slow enough"),
        pytest.param(report(compute=0.04), [report(compute=0.01)] * 2, {}, {}, id="milliseconds say nothing"),
        pytest.param(
            report(etcd=0.5),
            [GOOD, GOOD],
            {"etcd": "0.5 s, median of the others 0.002 s"},
            {},
            id="a slow way to etcd",
        ),
        pytest.param(
            report(accelerators=7),
            [GOOD, GOOD],
            {"accelerators": "7, median of the others 8"},
            {},
            id="a GPU is missing",
        ),
        pytest.param(
            report("exit code 3", compute=0.5),
            [GOOD, GOOD],
            {"command": "exit code 3", "compute": "0.5 s, median of the others 0.1 s"},
            {},
            id="two checks",
        ),
        pytest.param(report(), [GOOD, GOOD], {}, {}, id="nothing was measured"),
    ],
)
def test_a_member_is_suspect_by_its_checks_and_those_of_the_others(
    own: PreflightValue, others: list[PreflightValue], failed: dict[str, str], distrusted: dict[str, str]
) -> None:
    reports = {"a": own, **{f"other-{index}": each for index, each in enumerate(others)}}
    outcome = judge("a", reports)
    assert (outcome.failed, outcome.distrusted) == (failed, distrusted)


@pytest.mark.parametrize(
    ("reports", "least", "expected"),
    [
        pytest.param({"a": GOOD}, 4, False, id="passes: waits for no one"),
        pytest.param({"a": BAD}, 1, False, id="no one else is expected"),
        pytest.param({"a": BAD}, 2, True, id="fails, and no one else has reported"),
        pytest.param({"a": BAD, "b": GOOD}, 4, True, id="fails, and too few have reported"),
        pytest.param({"a": BAD, "b": GOOD}, 2, False, id="enough have"),
        pytest.param({"a": BAD, "b": BAD}, 4, False, id="not trusted anyway"),
    ],
)
def test_a_member_that_fails_waits_for_the_reports_of_the_others(
    reports: dict[str, PreflightValue], least: int, expected: bool
) -> None:
    assert waits("a", reports, least) is expected
