"""Which checks a member fails before it joins, and which of them say more about the check than about the machine."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import PreflightValue
from elasticjob_runtime.membership.preflight import ROUNDS, deal, judge, waits


def report(command: str = "", machine: str = "", **measured: float) -> PreflightValue:
    return PreflightValue(failed={"command": command} if command else {}, measured=measured, machine=machine)


GOOD, BAD = report(compute=0.1, etcd=0.002, accelerators=8.0), report("exit code 3")
SLOW = report(compute=0.5, etcd=0.002, accelerators=8.0)


JUDGED = {
    "alone": (GOOD, [], {}, {}),
    "as the others": (GOOD, [GOOD, GOOD], {}, {}),
    "fails alone: no other report speaks against it": (BAD, [], {"command": "exit code 3"}, {}),
    "half of two": (BAD, [GOOD], {"command": "exit code 3"}, {}),
    "half of four": (BAD, [BAD, GOOD, GOOD], {"command": "exit code 3"}, {}),
    "most fail it":
        (BAD, [BAD, GOOD], {}, {"command": "exit code 3; 2 of 3 members fail this check, so it is ignored"}),
    "all fail it": (BAD, [BAD], {}, {"command": "exit code 3; 2 of 2 members fail this check, so it is ignored"}),
    "one other is too few to compare with": (SLOW, [GOOD], {}, {}),
    "three times slower is suspect": (SLOW, [GOOD, GOOD], {"compute": "0.5 s, median of the others 0.1 s"}, {}),
    "the others are slow": (GOOD, [SLOW, GOOD], {}, {}),
    "a busy machine is not slow enough": (report(compute=0.29), [GOOD, GOOD], {}, {}),
    "milliseconds say nothing": (report(compute=0.04), [report(compute=0.01)] * 2, {}, {}),
    "a slow way to etcd": (report(etcd=0.5), [GOOD, GOOD], {"etcd": "0.5 s, median of the others 0.002 s"}, {}),
    "a GPU is missing": (report(accelerators=7), [GOOD, GOOD], {"accelerators": "7, median of the others 8"}, {}),
    "two checks":
        (report("exit code 3", compute=0.5), [GOOD, GOOD], {"command": "exit code 3",
            "compute": "0.5 s, median of the others 0.1 s"}, {}),
    "nothing was measured": (report(), [GOOD, GOOD], {}, {}),
    "a machine that fails counts once, however often it tried":
        (report("exit code 3", "x"), [report("exit code 3", "x"), report("exit code 3", "x"), report(machine="y"),
            report(machine="z")], {"command": "exit code 3"}, {}),
    "most machines fail it":
        (report("exit code 3", "x"), [report("exit code 3", "y"), report("exit code 3", "y"), report(machine="z")], {},
            {"command": "exit code 3; 2 of 3 machines fail this check, so it is ignored"}),
    "all on one machine":
        (report("exit code 3", "x"), [report("exit code 3", "x")], {},
            {"command": "exit code 3; 2 of 2 members fail this check, so it is ignored"}),
}  # fmt: skip


@pytest.mark.parametrize(("own", "others", "failed", "distrusted"), JUDGED.values(), ids=JUDGED)
def test_a_member_is_suspect_by_its_checks_and_those_of_the_others(
    own: PreflightValue, others: list[PreflightValue], failed: dict[str, str], distrusted: dict[str, str]
) -> None:
    reports = {"a": own, **{f"other-{index}": other for index, other in enumerate(others)}}
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


FAST, SLOWER, SLOWEST = 900.0, 500.0, 3.0


@pytest.mark.parametrize(
    ("speeds", "round_number", "pairs"),
    [
        pytest.param({}, 1, [], id="no member"),
        pytest.param({"a": None}, 1, [], id="alone"),
        pytest.param(dict.fromkeys("bacd"), 1, [("a", "b"), ("c", "d")], id="neighbours by name"),
        pytest.param(dict.fromkeys("abcde"), 1, [("a", "b"), ("c", "d")], id="an odd number: the last one waits"),
        pytest.param(
            {"a": SLOWEST, "b": SLOWEST, "c": FAST, "d": SLOWER}, 2, [("a", "c"), ("b", "d")], id="slow with fast"
        ),
        pytest.param(
            {"a": SLOWEST, "b": SLOWEST, "c": FAST, "d": SLOWER, "e": None}, 2, [("a", "c"), ("b", "d")], id="odd"
        ),
        pytest.param(
            {"a": None, "b": None, "c": FAST, "d": FAST}, 2, [("a", "d"), ("b", "c")], id="two had no partner"
        ),
        pytest.param({"a": SLOWEST, "b": FAST, "c": None}, 3, [("b", "c")], id="the last one, with the fastest"),
        pytest.param(dict.fromkeys("abcd", FAST), 3, [], id="an even number has no third round"),
    ],
)
def test_partners_are_dealt(speeds: dict[str, float | None], round_number: int, pairs: list[tuple[str, str]]) -> None:
    assert deal(speeds, round_number) == pairs


@pytest.mark.parametrize("count", range(4, 12))
@pytest.mark.parametrize("bad", range(4))
def test_a_slow_network_is_found_and_its_partners_are_cleared(count: int, bad: int) -> None:
    """A transfer is as fast as the slower one of two."""
    link = {f"worker-{index:02}": SLOWEST if index == bad else FAST for index in range(count)}
    best: dict[str, float | None] = dict.fromkeys(link)
    for round_number in range(1, ROUNDS + 1):
        for one, other in deal(best, round_number):
            speed = min(link[one], link[other])
            best.update({name: max(best[name] or 0.0, speed) for name in (one, other)})
    reports = {name: report(network=speed) for name, speed in best.items() if speed is not None}
    assert len(reports) == count
    found = {name: judge(name, reports).failed for name in link}
    assert found.pop(f"worker-{bad:02}") == {"network": "3 MB/s, median of the others 900 MB/s"}
    assert not any(found.values())


def test_others_that_still_transfer_data_are_waited_for() -> None:
    reports = {"a": report(network=FAST), "b": PreflightValue(endpoint="127.0.0.1 1 word")}
    assert waits("a", reports, 1)
    assert not waits("a", {**reports, "b": report(network=FAST)}, 1)
    assert not waits("a", {**reports, "a": report(compute=0.1)}, 1), "this member transfers no data"
