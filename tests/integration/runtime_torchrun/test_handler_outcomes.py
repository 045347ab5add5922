"""A job's success, its failure, and one agent's own error: the handler, called as torch's agent calls it."""

from __future__ import annotations

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


def test_set_closed_ends_the_job(make: Make) -> None:
    a, b = (make((2, 2)) for _ in range(2))
    together(a, b)
    a.set_closed()
    wait_for_restart(b)
    assert b.is_closed()
