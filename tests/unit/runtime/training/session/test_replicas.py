"""The vote of a replica: tests/integration/runtime_session/test_replica_sessions.py has several."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.session import torch_private, torch_sharding, transfer
from elasticjob_runtime.training.session.backend import Gloo
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.interruption import Interruption, OverError
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.replica_state import ReplicaState
from elasticjob_runtime.training.session.replicas import Replicas
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.world import SessionError, World
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.unit.runtime.training.session.engines import QuietEngine

pytestmark = pytest.mark.timeout(60)


class Replica:
    """Of one rank. Another one adds `theirs` to what is reduced, in turn, and votes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, frozen: bool = False) -> None:
        self.used, self.unused = nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False)
        self.used.requires_grad_(not frozen)
        self.replicas = Replicas(Parts({"used": self.used, "unused": self.unused}), Gloo())
        self.replicas.count = 2
        self.theirs: list[torch.Tensor] = []
        self.ballot: list[int] = []
        self.fails = False
        self.interruption = Interruption()
        self.replicas.use(SimpleNamespace(interruption=self.interruption, wait=lambda _: None))  # type: ignore[arg-type]
        monkeypatch.setattr(torch_private, "all_reduce", self.all_reduce)
        self.replicas.begin_step()

    def all_reduce(self, _group: Any, tensor: torch.Tensor, *, lowest: bool) -> None:
        if self.fails:
            raise RuntimeError("gloo: connection closed")
        if lowest:
            tensor.copy_(torch.minimum(tensor, torch.tensor(self.ballot or tensor.tolist())))
        elif self.theirs:
            tensor.add_(self.theirs.pop(0))

    def train(self, *, reduce: bool = True) -> None:
        self.used(torch.ones(1, 2)).sum().backward()
        if reduce:
            self.replicas.reduce_gradients()

    def vote(self, newest: int = 1) -> None:
        self.replicas.wait_for_collectives(self.interruption, newest)


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    return Replica(monkeypatch)


def test_gradients_become_the_mean_over_the_replicas_that_use_them(replica: Replica) -> None:
    """Here the other one has used only the second module."""
    replica.theirs = [torch.tensor([0, 1]), torch.tensor([0.0, 0.0, 8.0])]
    replica.train()
    assert replica.used.weight.grad is not None
    assert replica.used.weight.grad.tolist() == [[0.5, 0.5]]
    assert replica.unused.weight.grad is not None
    assert replica.unused.weight.grad.tolist() == [[4.0]]


def test_what_no_replica_uses_stays_without_a_gradient(replica: Replica) -> None:
    replica.train()
    assert replica.unused.weight.grad is None


def test_ranks_learn_the_largest_numbers_of_all_replicas_and_each_others_values(replica: Replica) -> None:
    replica.ballot = [-7, -1]
    assert replica.replicas.largest([3, 5]) == [7, 5]
    theirs = bytearray(pickle.dumps({"of": "another replica"}))
    table = torch.zeros(2, len(theirs), dtype=torch.uint8)
    table[1] = torch.frombuffer(theirs, dtype=torch.uint8)
    replica.ballot, replica.theirs = [-len(theirs)], [table]
    assert replica.replicas.gather({}) == [{}, {"of": "another replica"}]


def test_an_exchange_between_steps_that_fails_ends_the_world_and_is_no_vote(replica: Replica) -> None:
    replica.train(reduce=False)
    replica.fails = True
    with pytest.raises(OverError):
        replica.replicas.largest([1])
    with pytest.raises(OverError):
        replica.replicas.gather(1)
    assert replica.interruption.over


def test_parameters_that_are_frozen_at_first_are_reduced_once_they_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(monkeypatch, frozen=True)
    replica.used.weight.requires_grad_(True)
    replica.theirs = [torch.tensor([1, 0]), torch.tensor([3.0, 5.0])]
    replica.train()
    assert replica.used.weight.grad is not None
    assert replica.used.weight.grad.tolist() == [[2.0, 3.0]]


def test_a_rank_forgets_a_world_that_another_rank_of_its_replica_could_not_enter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELASTICJOB_REPLICA", "0")
    state = ReplicaState(Parts({"model": nn.Linear(1, 1)}))

    def enter(number: int) -> None:
        environment = {"ELASTICJOB_FENCE": f"1.0.{number}", "RANK": "0", "WORLD_SIZE": "2"}
        world = World(round=number, attempt="", step_grace=0.0, environment=environment)
        state.agree([state.process_state()], Interruption(), world)

    enter(6)
    before = state.process_state()
    enter(7)
    assert state.process_state() != before, "in a later world"
    enter(8)
    state.give_up(lambda ok: ok)
    assert state.process_state().state.fence == Fence.parse("1.0.7")


def test_ranks_of_a_replica_that_have_received_different_steps_end() -> None:
    engine = Engine.__new__(Engine)
    engine._backend = SimpleNamespace(range_in_replica=lambda step: (step, step + 1))
    with pytest.raises(SessionError, match="the state after step 10 and after step 11"):
        engine._check_same_step(10)


@pytest.mark.parametrize("reduced_before", [False, True], ids=["never", "only before the last backward pass"])
def test_a_step_whose_gradients_were_not_reduced_is_an_error_at_the_vote(
    replica: Replica, reduced_before: bool
) -> None:
    if reduced_before:
        replica.replicas.reduce_gradients()
    replica.train(reduce=False)
    with pytest.raises(SessionError, match=r"call session.reduce_gradients\(\) after the last backward"):
        replica.vote()


@pytest.mark.parametrize(
    ("ballot", "message"),
    [
        pytest.param([-1, 0, 0, -3], "the gradients of 3 parameters are those of one replica only", id="not reduced"),
        pytest.param([-1, -7, 0, 0], "every replica must use the same parts of the model", id="other parts"),
    ],
)
def test_a_rank_that_has_reduced_its_gradients_is_told_of_another_one_that_has_not_or_others(
    replica: Replica, ballot: list[int], message: str
) -> None:
    """Of another stage of its pipeline, say: it would wait for that one otherwise, and fail with an error of gloo."""
    replica.train()
    replica.ballot = ballot
    with pytest.raises(SessionError, match=message):
        replica.vote()


@pytest.mark.parametrize("steps_here", [True, False])
def test_an_optimizer_that_steps_in_some_replicas_only_is_an_error_in_all(replica: Replica, steps_here: bool) -> None:
    replica.train()
    replica.ballot = [-1, 0 if steps_here else 1, 0 if steps_here else -1, 0]
    with pytest.raises(SessionError, match="an optimizer steps in some replicas only"):
        replica.replicas.wait_for_collectives(replica.interruption, 1, used=steps_here)


def test_a_failed_reduction_raises_only_at_the_vote_and_ends_the_connections(replica: Replica) -> None:
    replica.fails = True
    replica.train()
    assert replica.interruption.over
    with pytest.raises(OverError, match="connection closed"):
        replica.vote()


def test_a_plan_of_which_a_vote_tells_is_due_and_no_other(replica: Replica) -> None:
    world, newer = (World(round=number, attempt="", step_grace=0.0, environment={}) for number in (1, 2))
    end = dataclasses.replace(world, ends=True)
    replica.train()
    replica.vote(newest=world.order)
    assert not replica.replicas.is_due(newer, world)
    replica.replicas.begin_step()
    replica.train()
    replica.ballot = [-end.order, 1, -1, 0]
    replica.vote(newest=world.order)
    assert replica.replicas.is_due(world, world), "the end of this world, which has its round"
    assert not replica.replicas.is_due(newer, newer)


def test_replicas_that_reduce_modules_of_the_same_size_in_another_order_are_told(replica: Replica) -> None:
    digests = []
    for numbers in ((0, 1), (1, 0)):
        replica.replicas.begin_step()
        for number in numbers:
            replica.replicas._reduce_for_fsdp(number, torch.zeros(4))
        replica.replicas._reduced = True
        digests.append(replica.replicas._reductions)
    replica.ballot = [-1, digests[0], -digests[0], 0]
    with pytest.raises(SessionError, match="every replica must use the same parts of the model"):
        replica.vote()


def test_a_second_step_of_the_optimizer_in_one_step_is_an_error(replica: Replica) -> None:
    replica.train()
    replica.vote()
    with pytest.raises(SessionError, match=r"once in each session.step\(\)"):
        replica.vote()


@pytest.fixture
def fsdp(group: None) -> Any:  # noqa: ARG001
    """For a group of one rank."""
    return pytest.importorskip("torch.distributed.fsdp")


class Average:
    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


def test_a_part_of_the_script_with_sharded_tensors_gets_such_tensors_from_another_replica(fsdp: Any) -> None:
    model = fsdp.fully_shard(nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,)))
    average = Average(model)
    parts = Parts({"model": model, "average": average})
    sent: list[torch.Tensor] = []
    structure = transfer._take_out(parts.collect(), sent)
    received: list[torch.Tensor] = []
    state = transfer._put_in(structure, received, None)
    for mine, theirs in zip(received, sent, strict=True):
        mine.copy_(theirs + 1)
    parts.apply(state)
    for name, parameter in model.named_parameters():
        assert torch_sharding.is_dtensor(average.shadow[name])
        assert torch.equal(torch_sharding.local(average.shadow[name]), torch_sharding.local(parameter))


def test_a_trial_of_a_sharded_model_puts_back_what_a_checkpoint_has_loaded(fsdp: Any) -> None:
    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    for module in (*model, model):
        fsdp.fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    parts = Parts({"model": model, "optimizer": optimizer})
    steps = Steps(parts, TrainingState(parts, snapshots=False), cast(Engine, QuietEngine()))

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    before, tensors = copy.deepcopy(parts.collect()), list[torch.Tensor]()
    with steps.take(lambda: pytest.fail("it is committed"), trial=True):
        step()
    now = list[torch.Tensor]()
    transfer._take_out(before, tensors)
    transfer._take_out(parts.collect(), now)
    assert len(tensors) == len(now) == 4 * 4
    assert all(torch.equal(one, other) for one, other in zip(now, tensors, strict=True))


def test_parameters_that_fsdp_ignores_are_reduced_by_reduce_gradients(
    monkeypatch: pytest.MonkeyPatch, fsdp: Any
) -> None:
    if not hasattr(fsdp.FSDPModule, "set_all_reduce_hook"):
        pytest.skip("this torch has no hook: reduce_gradients() reduces all parameters")
    mesh = init_device_mesh("cpu", (1,))
    apart = nn.Linear(2, 2)
    block = nn.Sequential(apart, nn.Linear(2, 1))
    model = nn.Sequential(nn.Linear(2, 2), block)
    ignored = set(apart.parameters())
    fsdp.fully_shard(block, mesh=mesh, ignored_params=ignored)
    fsdp.fully_shard(model, mesh=mesh, ignored_params=ignored)
    replicas = Replicas(Parts({"model": model}), Gloo())
    replicas.count = 2
    reduced: list[int] = []
    monkeypatch.setattr(replicas, "_all_reduce", lambda _used: True)
    monkeypatch.setattr(replicas, "_reduce", lambda gradients: reduced.append(gradients.numel()))
    model(torch.ones(1, 2)).sum().backward()
    assert reduced == [3, 6]
    replicas.reduce_gradients()
    assert reduced[2:] == [6], "the gradients of the ignored ones"
