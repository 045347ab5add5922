"""torch's RendezvousHandler over etcd v3.

torch's agent calls next_rendezvous() for every round, polls num_nodes_waiting() ten times a second to find out whether
to restart its workers, and calls shutdown() when it ends by itself. A signal ends it without that call.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from types import TracebackType

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
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

from elasticjob_runtime.cli import rendezvous_flags
from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import Env, ExitCode, OutcomeState, OutcomeValue
from elasticjob_runtime.etcd import Store
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.rendezvous.config import MemberConfig
from elasticjob_runtime.torchrun import BACKEND
from elasticjob_runtime.torchrun.member import EndedError, TorchrunMember
from elasticjob_runtime.torchrun.options import member_config, read_conf
from elasticjob_runtime.torchrun.outcome import failed_outcome
from elasticjob_runtime.torchrun.round_store import RoundOverError, RoundStore, RoundStores, enter
from elasticjob_runtime.torchrun.signals import SignalPipe, leaving_on_signals
from elasticjob_runtime.workers.environment import RES_OPTIONS, fencing_token

logger = logging.getLogger(__name__)

CONFIRM_FAILURE = 1.0
"""s between the last failure on this node and the end of the job: a lost member makes the workers of all others fail,
and is detected within this time."""

PUBLISH_TIMEOUT = 5.0
"""s to publish how the job ended."""


class SettingsError(RendezvousError, ValueError):
    """A flag of torchrun is wrong. The message names it and says what to write instead."""


def create(parameters: RendezvousParameters) -> EtcdRendezvousHandler:
    _set_up_logging()
    os.environ.setdefault("RES_OPTIONS", RES_OPTIONS)  # for the stores of the agent and the workers
    try:
        conf = read_conf(parameters.config)
        store = rendezvous_flags.open_store(parameters.endpoint, conf, os.environ)
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
    """One member of the run `config.keys.run_id`. Called on the main thread, like torch's agent."""

    def __init__(self, config: MemberConfig, store: Store) -> None:
        self._config = config
        self._etcd = store
        self._member: TorchrunMember | None = None
        self._stores: RoundStores | None = None
        self._round: RoundStore | None = None
        self._shared = False
        self._signals: SignalPipe | None = None

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._config.keys.run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether MASTER_ADDR and MASTER_PORT are those of this round's store; if not, rank 0's worker opens a store
        there."""
        return self._shared

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns when all members of a plan that includes this one have met.

        Raises RendezvousClosedError if the job has failed; RendezvousTimeoutError after join_timeout;
        RendezvousConnectionError if etcd refuses this member or it has lost its place; SystemExit(0) if the job
        succeeded without it (torch 2.6 to 2.15 do not handle RendezvousGracefulExitError).
        """
        member, stores = self._joined()
        member.on_rejoin()
        try:
            with leaving_on_signals():
                plan, self._round = _meet(member, stores)
        except EndedError as end:
            raise _error(end) from None
        except TimeoutError as error:
            raise RendezvousTimeoutError(str(error)) from None
        self._shared = plan.value.agent_store
        assert plan.rank is not None
        os.environ[Env.FENCE] = str(
            fencing_token(os.environ, plan.value)
        )  # torch's agent passes its own environment to the round's workers
        where = RendezvousStoreInfo(plan.value.master_addr, self._round.worker_port)
        return RendezvousInfo(self._round, plan.rank.group_rank, plan.value.size, where)

    def num_nodes_waiting(self) -> int:
        """1 if the workers must restart: a member joined, left or was lost, another member's workers failed, or the job
        is over."""
        return int(self._member is not None and self._member.wants_restart())

    def is_closed(self) -> bool:
        return self._member is not None and self._member.outcome() is not None

    def set_closed(self) -> None:
        """Ends the job for all members."""
        if self._member is not None:
            outcome = OutcomeValue(state=OutcomeState.FAILED, reason="Closed", message="the rendezvous was closed")
            self._member.conclude(outcome, gone=False)

    def shutdown(self) -> bool:
        """Called when torch's agent ends. Only the success or failure of its workers ends the job; an error of the
        agent itself does not affect the other members."""
        error = sys.exc_info()[1]  # torch calls this from a `finally`
        member, done = self._member, True
        if error is None and self._round is not None and not self._round.finished:
            # torch 2.6 also calls this when it stops the last workers, before it reports that they failed, and then
            # calls it again
            return True
        if member is not None:
            if isinstance(error, ChildFailedError):
                done = self._fail(member, error)
            elif error is None:
                done = self._succeed(member)
        self._leave()
        return done

    def _joined(self) -> tuple[TorchrunMember, RoundStores]:
        if self._member is None or self._stores is None:
            self._stores = RoundStores(self._config.port_range)
            self._member = TorchrunMember(self._config, self._etcd, self._stores.ports, shared=self._stores.shared)
            self._signals = SignalPipe()
            self._member.start(self._signals.read)
            atexit.register(self._leave)
        return self._member, self._stores

    def _succeed(self, member: TorchrunMember) -> bool:
        """Waits for the end of the job: if this agent left while others train, they would take it for a lost member."""
        if self._round is None:
            return True
        member.finish()
        return member.wait_for_end(PUBLISH_TIMEOUT if self._round.all_finished else None)

    def _fail(self, member: TorchrunMember, error: ChildFailedError) -> bool:
        round_number = self._round.round if self._round is not None else 0
        member.is_over_within(round_number, CONFIRM_FAILURE)
        if not member.closes():
            return True
        rank, failure = error.get_first_failure()
        member.conclude(failed_outcome(self._config.settings.me, round_number, rank, failure), gone=True)
        return member.wait_for_end(PUBLISH_TIMEOUT)

    def _leave(self) -> None:
        atexit.unregister(self._leave)
        if self._signals is not None:
            self._signals.close()
        if self._member is not None:
            self._member.close()
        self._stores = None
        self._etcd.close()


def _meet(member: TorchrunMember, stores: RoundStores) -> tuple[Plan, RoundStore]:
    """Follows one plan after the other until all members of one have met."""
    while True:
        plan = member.next_plan()
        with contextlib.suppress(RoundOverError):
            store = enter(member, stores, plan)
            if member.run(plan.round):
                return plan, store


def _error(end: EndedError) -> BaseException:
    if end.code is ExitCode.SUCCEEDED:
        logger.info("%s; nothing left to do here", end)
        return SystemExit(0)
    if end.code is ExitCode.WORKERS_FAILED:
        return RendezvousClosedError(str(end))
    return RendezvousConnectionError(str(end))


# -- logging and error messages


def _set_up_logging() -> None:
    """Logs membership changes to stderr, where torchrun's own log goes; the level is torch's variable LOGLEVEL. Also
    prints errors in one sentence."""
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
    """The sys.excepthook for a process that uses this rendezvous: prints a rendezvous error without torch's stack
    frames."""
    if isinstance(error, RendezvousError | SignalException):
        print(f"torchrun: {error}", file=sys.stderr)  # noqa: T201 - a command line tool's own error
    else:
        sys.__excepthook__(kind, error, trace)
