"""A job's success, its failure, and one agent's own error: the handler, called as torch's agent calls it."""

from __future__ import annotations

from concurrent.futures import wait

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousTimeoutError,
)

from hack.support import eventually
from tests.integration.runtime_torchrun.handler_members import SOON, Make, failed, together, wait_for_restart

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def test_success_ends_the_job_for_spares_too(make: Make) -> None:
    """torchrun raises RendezvousClosedError in all members but the first, and AttributeError in spares."""
    members = [make((2, 2)) for _ in range(2)]
    together(*members)
    third = make((2, 2))
    spare = third.meet()
    eventually(third.is_registered, SOON)
    assert [done.result(SOON) for done in [member.finish() for member in members]] == [None, None]
    assert all(end.result(SOON) for end in [member.end() for member in members])
    assert members[0].is_closed()
    with pytest.raises(SystemExit) as exit_:
        spare.result(SOON)
    assert exit_.value.code == 0


def test_a_run_id_can_be_used_again(make: Make) -> None:
    """torchrun raises RendezvousClosedError."""
    for _ in range(2):
        members = [make((2, 2)) for _ in range(2)]
        together(*members)
        for done in [member.finish() for member in members]:
            done.result(SOON)
        assert all(end.result(SOON) for end in [member.end() for member in members])


def test_the_first_member_to_finish_waits_for_the_others(make: Make) -> None:
    """torchrun gives up after five minutes, and closes the rendezvous for the others."""
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    done = a.finish()
    assert not wait([done], 1.0).done
    assert not b.num_nodes_waiting()
    b.finish().result(SOON)
    done.result(SOON)


def test_a_finished_member_leaves_when_the_others_restart(make: Make) -> None:
    a, b = (make((1, 2), start_grace=60) for _ in range(2))
    together(a, b)
    done = a.finish()
    assert b.meet().result(SOON).world_size == 1
    done.result(SOON)
    assert a.end().result(SOON)
    assert not b.num_nodes_waiting(), "the end of a finished member needs no new round"
    assert not b.is_closed()


def test_a_failure_without_restarts_left_fails_the_job(make: Make) -> None:
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    assert a.end(failed()).result(SOON)
    wait_for_restart(b)
    with pytest.raises(RendezvousClosedError, match=r"rank 0 on a failed: .*no restarts left"):
        b.meet().result(SOON)


def test_a_shutdown_before_the_failure_is_reported_is_not_a_success(make: Make) -> None:
    """torch 2.6 shuts down twice: from its agent, and with the failure from its launcher."""
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    assert a.end().result(SOON)
    assert not a.is_closed()
    assert a.end(failed()).result(SOON)
    wait_for_restart(b)
    with pytest.raises(RendezvousClosedError, match="no restarts left"):
        b.meet().result(SOON)


@pytest.mark.parametrize(
    "error",
    [RendezvousTimeoutError("x"), RuntimeError("x"), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_an_agents_own_error_does_not_close_the_rendezvous(make: Make, error: BaseException) -> None:
    """In torchrun, SIGTERM or an error of one agent closes the rendezvous for all."""
    a, b = (make((1, 2), start_grace=60) for _ in range(2))
    together(a, b)
    a.end(error).result(SOON)
    wait_for_restart(b)
    assert b.meet().result(SOON).world_size == 1


def test_failures_caused_by_a_lost_member_do_not_fail_the_job(make: Make) -> None:
    a, b, c = (make((1, 3), start_grace=60) for _ in range(3))
    together(a, b, c)
    c.vanish()
    assert b.end(failed()).result(SOON), "no restarts left, because c is lost"
    wait_for_restart(a)
    eventually(lambda: a.meet().result(SOON).world_size == 1, SOON)
    assert not a.is_closed()


def test_set_closed_ends_the_job(make: Make) -> None:
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    a.set_closed()
    wait_for_restart(b)
    assert b.is_closed()
