"""torch's RendezvousHandler over etcd v3.

torch's agent calls next_rendezvous for every round, asks num_nodes_waiting() ten times a second whether to start over,
and calls shutdown() when it ends by itself; a signal ends it without.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from elasticjob_runtime.cli.options import UsageError
from elasticjob_runtime.contract import Env, ExitCode, FailureValue, OutcomeState, OutcomeValue
from elasticjob_runtime.etcd import Store
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.rendezvous.config import MemberConfig
from elasticjob_runtime.torchrun import BACKEND
from elasticjob_runtime.torchrun.member import LEAVE_SIGNALS, Ended, Member
from elasticjob_runtime.torchrun.options import member_config, open_store, read_conf
from elasticjob_runtime.torchrun.round_store import RoundOver, RoundStore, StoreHost, enter
from elasticjob_runtime.workers.environment import RES_OPTIONS, fencing_token

logger = logging.getLogger(__name__)

CONFIRM_FAILURE = 1.0
"""s between the last failure here and the job's: a lost member, which makes the workers of all others fail, is noticed
in less."""

TELL_END = 5.0
"""s to tell the others how the job ended."""


class SettingsError(RendezvousError, ValueError):
    """A flag of torchrun is wrong; says which, and what to write instead."""


def create(parameters: RendezvousParameters) -> EtcdRendezvousHandler:
    _set_up_logging()
    os.environ.setdefault("RES_OPTIONS", RES_OPTIONS)  # for the stores of agent and workers
    try:
        conf = read_conf(parameters.config)
        store = open_store(parameters.endpoint, conf)
        config = member_config(
            conf,
            endpoints=store.endpoints,
            run_id=parameters.run_id,
            least=parameters.min_nodes,
            most=parameters.max_nodes,
            local_addr=parameters.local_addr,
        )
    except UsageError as error:
        raise SettingsError(str(error)) from None
    return EtcdRendezvousHandler(config, store)


class EtcdRendezvousHandler(RendezvousHandler):
    """One member of the run `config.run_id`. The main thread's, as torch's agent is."""

    def __init__(self, config: MemberConfig, store: Store) -> None:
        self._config = config
        self._etcd = store
        self._member: Member | None = None
        self._stores: StoreHost | None = None
        self._round: RoundStore | None = None
        self._shared = False
        self._signals: _SignalPipe | None = None

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._config.keys.run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether MASTER_ADDR and MASTER_PORT are those of this round's store, or the worker of rank 0 opens one
        there."""
        return self._shared

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns when all members of a plan that names this one are here.

        Raises RendezvousClosedError: the job has failed; RendezvousTimeoutError: after join_timeout;
        RendezvousConnectionError: etcd refuses this member, or it has lost its place. SystemExit(0): the job succeeded
        without it (torch 2.6 to 2.15 stumble over RendezvousGracefulExitError).
        """
        member, stores = self._joined()
        member.come_back()
        try:
            with _leaving_on_signals():
                plan, self._round = _meet(member, stores)
        except Ended as end:
            raise _error(end) from None
        except TimeoutError as error:
            raise RendezvousTimeoutError(str(error)) from None
        self._shared = plan.value.agent_store
        assert plan.rank is not None
        os.environ[Env.FENCE] = str(
            fencing_token(os.environ, plan.value)
        )  # torch's agent starts the round's workers with its own environment
        where = RendezvousStoreInfo(plan.value.master_addr, self._round.worker_port)
        return RendezvousInfo(self._round, plan.rank.group_rank, plan.value.size, where)

    def num_nodes_waiting(self) -> int:
        """1 where the workers are to start over: a member came, left or was lost, workers of another failed, or the job
        is over."""
        return int(self._member is not None and self._member.wants_restart())

    def is_closed(self) -> bool:
        return self._member is not None and self._member.outcome() is not None

    def set_closed(self) -> None:
        """The job is over for all members."""
        if self._member is not None:
            verdict = OutcomeValue(state=OutcomeState.FAILED, reason="Closed", message="the rendezvous was closed")
            self._member.conclude(verdict, gone=False)

    def shutdown(self) -> bool:
        """The end of torch's agent. Only success or failure of the workers is the job's; an agent's own trouble is
        nobody else's."""
        error = sys.exc_info()[1]  # torch calls this from a `finally`
        member, done = self._member, True
        if error is None and self._round is not None and not self._round.finished:
            # torch 2.6 calls this too when it stops the last workers, before it says that they failed: it calls again
            return True
        if member is not None:
            if isinstance(error, ChildFailedError):
                done = self._fail(member, error)
            elif error is None:
                done = self._succeed(member)
        self._leave()
        return done

    def _joined(self) -> tuple[Member, StoreHost]:
        if self._member is None or self._stores is None:
            self._stores = StoreHost(self._config.port_range)
            self._member = Member(self._config, self._etcd, self._stores.ports, shared=self._stores.shared)
            self._signals = _SignalPipe()
            self._member.start(self._signals.read)
            atexit.register(self._leave)
        return self._member, self._stores

    def _succeed(self, member: Member) -> bool:
        """An agent that left while others train would be missed as a lost member, so it waits for the job's end."""
        if self._round is None:
            return True
        member.finish()
        return member.wait_for_end(TELL_END if self._round.all_finished else None)

    def _fail(self, member: Member, error: ChildFailedError) -> bool:
        round_number = self._round.round if self._round is not None else 0
        member.is_over_within(round_number, CONFIRM_FAILURE)
        if not member.closes():
            return True
        rank, failure = error.get_first_failure()
        member.conclude(_failed(self._config.settings.me, round_number, rank, failure), gone=True)
        return member.wait_for_end(TELL_END)

    def _leave(self) -> None:
        atexit.unregister(self._leave)
        if self._signals is not None:
            self._signals.close()
        if self._member is not None:
            self._member.close()
        self._stores = None
        self._etcd.close()


def _meet(member: Member, stores: StoreHost) -> tuple[Plan, RoundStore]:
    """Follows plan after plan until all members of one are here."""
    while True:
        plan = member.next_plan()
        with contextlib.suppress(RoundOver):
            store = enter(member, stores, plan)
            if member.run(plan.round):
                return plan, store


def _failed(me: str, round_number: int, rank: int, failure: ProcessFailure) -> OutcomeValue:
    said = FailureValue(
        member=me,
        round=round_number,
        rank=rank,
        local_rank=failure.local_rank,
        exit_code=failure.exitcode,
        reason="Signal" if failure.exitcode < 0 else "ApplicationError",
        message=_message(failure),
        traceback=_traceback(failure),
        host=socket.gethostname(),
        time=float(failure.timestamp or 0),
    )
    message = f"rank {rank} on {me} failed: {said.message}; torchrun has no restarts left (--max-restarts)"
    values = {field: getattr(said, field) for field in FailureValue.__dataclass_fields__}
    return OutcomeValue(
        state=OutcomeState.FAILED, reason="MaxRestartsExceeded", message=message, round=round_number, failure=values
    )


def _said(failure: ProcessFailure) -> Mapping[str, Any]:
    """What @record wrote in the worker; empty: nothing."""
    message = failure.error_file_data.get("message")
    return message if isinstance(message, dict) else {}


def _message(failure: ProcessFailure) -> str:
    """One line. Where the worker wrote nothing, torch has the address of its documentation instead."""
    if said := _said(failure):
        return str(said.get("message", "")).strip().partition("\n")[0][:500]
    return str(failure.message) if failure.exitcode < 0 else f"exit code {failure.exitcode}"


def _traceback(failure: ProcessFailure) -> str:
    extra = _said(failure).get("extraInfo")
    return str(extra.get("py_callstack", ""))[-4096:] if isinstance(extra, dict) else ""


def _error(end: Ended) -> BaseException:
    if end.code is ExitCode.SUCCEEDED:
        logger.info("%s; nothing left to do here", end)
        return SystemExit(0)
    if end.code is ExitCode.WORKERS_FAILED:
        return RendezvousClosedError(str(end))
    return RendezvousConnectionError(str(end))


# -- signals


class _SignalPipe:
    """Tells the member's thread of signals at once, while torch's handlers deal with them. Only where nobody else
    listens this way."""

    def __init__(self) -> None:
        self.read: int | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before == -1:
            self.read = read
        else:
            signal.set_wakeup_fd(before)

    def close(self) -> None:
        """The pipe stays open: the member's thread may be in it."""
        if self.read is not None and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)


@contextlib.contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """torch takes signals when it starts workers. Before, they would kill the agent before it could say good-bye."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SignalException(f"Process {os.getpid()} got signal: {number}", sigval=signal.Signals(number))

    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in LEAVE_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


# -- what people see


def _set_up_logging() -> None:
    """Membership changes on stderr, as torchrun's own log; LOGLEVEL, torch's variable, says how much. And errors in one
    sentence."""
    root = logging.getLogger("elasticjob_runtime")
    if not root.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[etcd-v3] %(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S"))
        root.addHandler(handler)
        root.propagate = False
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    if root.level != logging.DEBUG and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _one_sentence


def _one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """sys.excepthook of a process whose rendezvous is ours: an error for the person at the terminal, without torch's
    frames."""
    if isinstance(error, RendezvousError | SignalException):
        print(f"torchrun: {error}", file=sys.stderr)  # noqa: T201 - a command line tool's own error
    else:
        sys.__excepthook__(kind, error, trace)
