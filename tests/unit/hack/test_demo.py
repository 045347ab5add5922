"""What the demo makes of the logs of worker pods."""

from __future__ import annotations

import pytest

from hack import demo

BEFORE = {
    "a": "pid=1 rank=0 trains with 3 workers after step=0\nstep=500 x\n",
    "b": "pid=2 rank=1 trains with 3 workers after step=0\n",
}


def ends(*, pid: int = 2, without: int = 2, resumed: int = 500, full: int = 3) -> dict[str, str]:
    """The logs at the end."""
    worlds = (
        f"rank=%d trains with {without} workers after step={resumed}\n"
        f"pid=%d rank=%d trains with {full} workers after step=600\n"
    )
    return {
        "a": BEFORE["a"] + f"pid=1 {worlds % (0, 1, 0)}step=1000 x\n",
        "b": BEFORE["b"] + f"pid={pid} {worlds % (1, pid, 1)}",
        "c": "",
    }


@pytest.mark.parametrize(
    ("logs", "problem"),
    [
        (BEFORE, "do not show that the other worker processes continued"),
        (ends(without=3), "do not show that the other worker processes continued"),
        (ends(full=2), "before it was back at full size"),
        (ends(pid=9), "restarted: b"),
        (ends(resumed=490), "steps were lost: 9"),
    ],
)  # fmt: skip
def test_every_bad_end_is_a_failure_that_says_why(logs: dict[str, str], problem: str) -> None:
    with pytest.raises(demo.DemoError, match=problem):
        demo.judge(BEFORE, logs, 3)


def test_it_succeeds_if_the_others_continue_and_a_replacement_joins() -> None:
    demo.judge(BEFORE, ends(), 3)
    demo.judge(BEFORE, ends(resumed=499), 3)  # the printed step was interrupted before its commit
