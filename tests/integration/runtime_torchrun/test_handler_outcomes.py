"""How a job ends under the handler, called as torch's agent calls it: success, failure, and one agent's own error."""

from __future__ import annotations

from concurrent.futures import wait

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousTimeoutError,
)

from hack.support import eventually
from tests.integration.runtime_torchrun.handler_members import SOON, Make, failed, together, wants_restart

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def test_success_ends_the_job_for_all_spares_too(make: Make) -> None:
    """torchrun: RendezvousClosedError for who is not done first, AttributeError for spares."""
    members = [make((2, 2)) for _ in range(2)]
    together(*members)
    third = make((2, 2))
    spare = third.meet()
    eventually(third.is_there, SOON)
    assert [done.result(SOON) for done in [member.finish() for member in members]] == [None, None]
    assert all(end.result(SOON) for end in [member.end() for member in members])
    assert members[0].is_closed()
    with pytest.raises(SystemExit) as exit_:
        spare.result(SOON)
    assert exit_.value.code == 0


def test_a_run_id_can_be_used_again(make: Make) -> None:
    """torchrun: RendezvousClosedError."""
    for _ in range(2):
        members = [make((2, 2)) for _ in range(2)]
        together(*members)
        for done in [member.finish() for member in members]:
            done.result(SOON)
        assert all(end.result(SOON) for end in [member.end() for member in members])


def test_one_that_is_done_first_waits_for_the_others(make: Make) -> None:
    """torchrun gives up after five minutes, and closes the rendezvous under the others."""
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    done = a.finish()
    assert not wait([done], 1.0).done
    assert not b.num_nodes_waiting()
    b.finish().result(SOON)
    done.result(SOON)


def test_one_that_is_done_leaves_the_others_to_it_when_they_have_to_start_again(make: Make) -> None:
    a, b = (make((1, 2), start_grace=60) for _ in range(2))
    together(a, b)
    done = a.finish()
    assert b.meet().result(SOON).world_size == 1
    done.result(SOON)
    assert a.end().result(SOON)
    assert not b.num_nodes_waiting(), "that the first one is gone is no news"
    assert not b.is_closed()


def test_a_failure_for_good_is_the_jobs(make: Make) -> None:
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    assert a.end(failed()).result(SOON)
    wants_restart(b)
    with pytest.raises(RendezvousClosedError, match=r"rank 0 on a failed: .*no restarts left"):
        b.meet().result(SOON)


def test_a_torch_that_shuts_down_before_it_says_that_workers_failed(make: Make) -> None:
    """torch 2.6 does, once from its agent and once from its launcher: that is no success."""
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    assert a.end().result(SOON)
    assert not a.is_closed()
    assert a.end(failed()).result(SOON)
    wants_restart(b)
    with pytest.raises(RendezvousClosedError, match="no restarts left"):
        b.meet().result(SOON)


@pytest.mark.parametrize("error", [RendezvousTimeoutError("x"), RuntimeError("x"), KeyboardInterrupt()])
def test_an_agents_own_trouble_closes_nothing(make: Make, error: BaseException) -> None:
    """torchrun: SIGTERM or an error of one agent closes the rendezvous for all."""
    a, b = (make((1, 2), start_grace=60) for _ in range(2))
    together(a, b)
    a.end(error).result(SOON)
    wants_restart(b)
    assert b.meet().result(SOON).world_size == 1


def test_workers_that_fail_of_a_lost_member_do_not_fail_the_job(make: Make) -> None:
    a, b, c = (make((1, 3), start_grace=60) for _ in range(3))
    together(a, b, c)
    c.vanish()
    assert b.end(failed()).result(SOON), "out of restarts, for c's sake"
    wants_restart(a)
    eventually(lambda: a.meet().result(SOON).world_size == 1, SOON)
    assert not a.is_closed()


def test_set_closed_ends_the_job(make: Make) -> None:
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    a.set_closed()
    wants_restart(b)
    assert b.is_closed()
