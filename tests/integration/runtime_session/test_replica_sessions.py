"""Replicas of sharded models go through losses and joins, and end where an undisturbed training does.

Sums over another number of replicas differ in the last bits; with the same shares, replicas are equal bit by bit.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from elasticjob_runtime.contract import Env

from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.history import wait_until
from tests.integration.runtime_session.replica_driver import SCRIPT, Replica, ReplicaDriver, Trained

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

STEPS, NEAR = 20, 1e-12
RANKS = {"fsdp+tp": 4, "plain": 1}
"""Of a replica; 2 for all other kinds."""
HIDDEN = {"tp": "18", "fsdp+tp": "20"}
"""Tensor parallelism divides evenly; FSDP pads one of two shards of 17 rows."""

FAKE_NCCL: Any = {"FAKE_NCCL": "1"}
ON_GPUS: Any = {"BACKEND": "nccl", Env.IN_PLACE_NCCL: "1"}
NCCL = [
    pytest.param(2, FAKE_NCCL, id="a second gloo in its place"),
    pytest.param(1, ON_GPUS, id="replicas of one GPU", marks=pytest.mark.gpu(2)),
    pytest.param(2, ON_GPUS, id="of two", marks=pytest.mark.gpu(4)),
    pytest.param(2, {**ON_GPUS, "BACKEND": "cpu:gloo,cuda:nccl"}, id="of two, with gloo", marks=pytest.mark.gpu(4)),
]
"""Ranks of a replica, and where they are. Two replicas are on as many GPUs."""


def fault(rank: str, place: str, action: str = "kill", *, step: int = 5, call: int | None = None) -> dict[str, Any]:
    return {"rank": rank, "place": place, "action": action, "step": step} | ({} if call is None else {"call": call})


def killed(replica: str, place: str, *indexes: int, **where: Any) -> list[dict[str, Any]]:
    return [fault(f"{replica}{index}", place, **where) for index in indexes or (0, 1)]


@contextlib.contextmanager
def training(
    folder: pathlib.Path,
    names: str,
    faults: list[dict[str, Any]] | None = None,
    later: str = "",
    ranks: int | None = None,
    **environment: str,
) -> Iterator[tuple[ReplicaDriver, list[Replica]]]:
    given = {"KIND": "fsdp", "FAULTS": json.dumps(faults or []), "GO": str(folder / "go"), **environment}
    given["HIDDEN"] = HIDDEN.get(given["KIND"], "17")
    size = ranks or RANKS.get(given["KIND"], 2)
    with contextlib.closing(ReplicaDriver(folder, given, size=size, on_gpus="BACKEND" in environment)) as driver:
        yield driver, driver.begin(names, later)


def alone(environment: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The weights after the same training in one process."""
    return _alone(
        tuple((name, environment[name]) for name in ("CLIP", "EPOCHS", "HIDDEN", "OPTIMIZER") if name in environment)
    )


@functools.cache
def _alone(settings: tuple[tuple[str, str], ...]) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/alone"
        given = {**os.environ, "HIDDEN": "17", **dict(settings), "OUTPUT": output, "KIND": "plain"}
        subprocess.run([sys.executable, os.fspath(SCRIPT)], env=given, check=True)
        weights: dict[str, torch.Tensor] = torch.load(f"{output}.pt")["full"]
        return weights


def assert_undisturbed(found: list[Trained], *, steps: int = STEPS, **environment: str) -> None:
    for replica in found:
        assert {rank.facts["committed"] for rank in replica.ranks} == {steps}
        replica.assert_same(found[0])
    assert found[0].distance(alone(environment)) < NEAR


@pytest.mark.parametrize("optimizer", ["AdamW", pytest.param("SGD", marks=pytest.mark.nightly)])
def test_the_other_replicas_continue_when_one_is_killed_in_a_reduction(optimizer: str, tmp_path: pathlib.Path) -> None:
    """With the weights of a planned change after the same step, bit by bit: the step that is lost leaves no trace."""
    with training(tmp_path / "lost", "ABC", killed("B", "reduce", call=2), OPTIMIZER=optimizer) as (driver, (a, _, c)):
        lost = driver.finish()
        assert [replica.name for replica in lost] == ["A", "C"]
        assert_undisturbed(lost, OPTIMIZER=optimizer)
        assert [step for _, step, _ in driver.steps_of(a)] == [1, 2, 3, 4, 5, 5, *range(6, STEPS + 1)]
        assert {count for _, step, count in driver.steps_of(c) if step > 5} == {2}
    with training(tmp_path / "planned", "ABC", PAUSE="4", OPTIMIZER=optimizer) as (driver, (a, _, c)):
        driver.wait_for_step(a, 4)
        number = driver.plan_replicas([a, c], step_grace=20.0)
        wait_until(driver, lambda: a.ranks[1].heard == number, "one rank has heard of the plan, and tells the others")
        (tmp_path / "planned" / "go").touch()
        for replica, same in zip(driver.finish(), lost, strict=True):
            replica.assert_same(same)


@pytest.mark.parametrize(("ranks", "nccl"), NCCL)
def test_nothing_that_aborted_reductions_on_a_gpu_leave_reaches_the_weights(
    ranks: int, nccl: Any, tmp_path: pathlib.Path
) -> None:
    faults = killed("B", "reduce", *range(ranks), call=2)
    with training(tmp_path, "AB", faults, ranks=ranks, **nccl) as (driver, (a, _)):
        found = driver.finish()
        assert [replica.name for replica in found] == ["A"]
        assert_undisturbed(found)
        for rank in a.ranks if nccl is FAKE_NCCL else ():
            assert "aborted with 1 reductions" in driver.log_of(rank)


@pytest.mark.parametrize(("ranks", "nccl"), NCCL)
def test_replicas_on_gpus_join_leave_and_are_lost(ranks: int, nccl: Any, tmp_path: pathlib.Path) -> None:
    with training(tmp_path, "A", later="B", ranks=ranks, EPOCHS="4", STEP_SECONDS="0.05", **nccl) as (driver, (a, b)):

        def more_steps(of: Replica) -> None:
            driver.wait_for_step(of, driver.steps_of(a)[-1][1] + 2)

        driver.wait_for_step(a, 2)
        driver.plan_replicas([a, b], step_grace=0.5)
        more_steps(b)
        number = driver.plan_replicas([a], step_grace=0.5)
        wait_until(driver, lambda: all(rank.waiting == number for rank in b.ranks), "B has left")
        more_steps(a)
        driver.plan_replicas([b, a], step_grace=0.5)
        more_steps(b)
        b.kill()
        assert_undisturbed(driver.finish(), steps=40, EPOCHS="4")


@pytest.mark.gpu
def test_a_replica_on_a_gpu_continues_after_its_communicator_is_aborted(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, "A", ranks=1, STEP_SECONDS="0.05", **ON_GPUS) as (driver, (a,)):
        for step in (3, 6, 9):
            driver.wait_for_step(a, step)
            driver.plan_replicas([a])  # in the midst of a step
        assert_undisturbed(driver.finish())


@pytest.mark.nightly
def test_the_first_replica_whose_initial_state_all_have_is_lost(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, "ABC", killed("A", "reduce", call=2)) as (driver, _):
        found = driver.finish()
        assert [replica.name for replica in found] == ["B", "C"]
        assert_undisturbed(found)


@pytest.mark.nightly
def test_the_last_replica_trains_on_alone(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, "AB", killed("B", "vote")) as (driver, _):
        found = driver.finish()
        assert [replica.name for replica in found] == ["A"]
        assert_undisturbed(found)


@pytest.mark.parametrize("index", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_replica_that_loses_one_rank_ends_and_the_others_continue(index: int, tmp_path: pathlib.Path) -> None:
    with training(tmp_path, "ABC", killed("B", "reduce", index, call=2)) as (driver, _):
        found = driver.finish()
        assert [replica.name for replica in found] == ["A", "C"]
        assert_undisturbed(found)


def test_a_replica_that_is_silent_is_left_behind_by_a_plan(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, "ABC", killed("B", "reduce", call=2, action="stop")) as (driver, (a, b, c)):
        driver.wait_for_step(a, 5)
        driver.pump(1.0)
        assert driver.steps_of(a)[-1][1] == 5, "no connection has ended, so the others wait"
        driver.plan_replicas([a, c])
        b.lost = True
        found = driver.finish()
        assert_undisturbed(found)


@pytest.mark.parametrize(
    "place", [*(pytest.param(place, marks=pytest.mark.nightly) for place in ("reduce", "vote")), "voted"]
)
def test_a_step_of_which_one_rank_has_lost_its_peers_counts_once_in_all_replicas(
    place: str, tmp_path: pathlib.Path
) -> None:
    """After a vote whose answer one rank has lost, the other replicas have committed the step, and give it to them."""
    with training(tmp_path, "AB", [fault("A1", place, "cut")]) as (driver, (a, b)):
        found = driver.finish()
        assert [replica.name for replica in found] == ["A", "B"]
        assert_undisturbed(found)
        assert a.ranks[0].process.returncode == b.ranks[1].process.returncode == 0


def test_a_replica_that_misses_the_answer_of_the_last_step_does_not_take_it_again_alone(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, "AB", [fault("A1", "voted", "cut", step=STEPS - 1)]) as (driver, (a, b)):
        found = driver.finish()
        assert [replica.name for replica in found] == ["A", "B"], "B stays, although it has committed all steps"
        assert_undisturbed(found)
        assert [step for _, step, _ in driver.steps_of(a)][-2:] == [STEPS - 1] * 2, "A has received what it missed"
        assert [step for _, step, _ in driver.steps_of(b)] == list(range(1, STEPS + 1))


def test_a_replica_that_joins_takes_a_step_on_trial_receives_the_state_and_all_train_on(tmp_path: pathlib.Path) -> None:
    """The others train on during the trial, which C ends when it may."""
    with training(tmp_path, "AB", STEP_SECONDS="0.05") as (driver, (a, b)):
        driver.environment["PAUSE"] = "0"
        c = driver.start_replica("C")
        wait_until(driver, lambda: c.ready, "C says hello")
        driver.tell([c], step_grace=0.0)
        driver.wait_for_step(a, 4)
        assert not c.waiting, "it is in its trial"
        (tmp_path / "go").touch()
        wait_until(driver, lambda: c.waiting == driver.round, "C has taken it")
        driver.plan_replicas([a, b, c], step_grace=0.5)
        found = driver.finish()
        assert_undisturbed(found)
        assert driver.steps_of(c)[0][1:] == (0, 3), "the trial"
        assert driver.steps_of(c)[1][1] > 4
        assert [step for _, step, _ in driver.steps_of(a)] == list(range(1, STEPS + 1)), "no step is taken twice"


def test_a_replica_that_joins_in_a_later_epoch_leaves_out_the_ones_before(tmp_path: pathlib.Path) -> None:
    """It evaluates in none of them, and what its script changes after each of them is undone."""
    with training(tmp_path, "A", later="B", STEP_SECONDS="0.05", EPOCHS="4") as (driver, (a, b)):
        driver.wait_for_step(a, 25)
        driver.plan_replicas([a, b], step_grace=0.5)
        found = driver.finish()
        assert_undisturbed(found, steps=40, EPOCHS="4")
        assert [rank.facts["epochs"] for replica in found for rank in replica.ranks] == [[4, 4]] * 4
        assert [replica.ranks[0].facts["evaluated"] for replica in found] == [[0, 1, 2, 3], [2, 3]]


@pytest.mark.nightly  # half a minute; unit tests prove that a trial changes nothing
def test_a_replica_that_waits_after_its_trial_trains_on_if_all_others_are_lost(tmp_path: pathlib.Path) -> None:
    """With the state that it began with: the trial has changed nothing."""
    with training(tmp_path, "A", later="B", STEP_SECONDS="0.05", OPTIMIZER="SGD") as (driver, (a, b)):
        driver.wait_for_step(a, 2)
        a.lost = True
        a.kill()
        driver.plan_replicas([b])
        (found,) = driver.finish()
        assert [rank.facts["committed"] for rank in found.ranks] == [STEPS] * 2
        assert [step for _, step, _ in driver.steps_of(b)] == list(range(STEPS + 1))
    with training(tmp_path / "undisturbed", "", OPTIMIZER="SGD") as (driver, _):
        _, same = driver.start_replica("A"), driver.start_replica("B")
        wait_until(driver, lambda: same.ready, "B says hello")
        driver.plan_replicas([same])
        found.assert_same(*driver.finish())


@pytest.mark.parametrize("kind", ["fsdp", pytest.param("tp", marks=pytest.mark.nightly)])
def test_every_item_of_streams_is_trained_on_once_while_replicas_join_and_are_lost(
    kind: str, tmp_path: pathlib.Path
) -> None:
    """1, 2, 3, 2 and 1 replicas; with tensor parallelism, the ranks of one take the same items."""
    environment: Any = {"KIND": kind, "STREAMS": "12", "EPOCHS": "6", "STEP_SECONDS": "0.05"}
    with training(tmp_path, "A", later="BC", **environment) as (driver, (a, b, c)):
        driver.wait_for_step(a, 3)
        driver.plan_replicas([a, b], step_grace=0.5)
        driver.wait_for_step(b, driver.steps_of(a)[-1][1] + 3)
        driver.plan_replicas([b, c, a], step_grace=0.5)  # all streams move
        driver.wait_for_step(c, driver.steps_of(a)[-1][1] + 3)
        c.kill()
        driver.mend()
        driver.wait_for_step(a, driver.steps_of(c)[-1][1] + 3)
        driver.plan_replicas([a], step_grace=0.5)
        assert_undisturbed(driver.finish(), steps=60, EPOCHS="6", HIDDEN=HIDDEN.get(kind, "17"))
        shares = [driver.samples_of(replica, rank) for replica in (a, b, c) for rank in range(2)]
        if kind == "tp":
            assert shares[0] == shares[1]
            shares = shares[::2]
        last = driver.samples_of(c)[-1][0]
        taken = [(epoch, sample) for share in shares for _, epoch, samples in share for sample in samples]
        assert len(set(taken)) == len(taken), "none twice"
        steps = collections.Counter(step for share in shares for step, _, samples in share for _ in samples)
        # c may have been killed after the vote, before it wrote what it has committed.
        assert {step for step in range(1, 61) if steps[step] != 24} <= {last, last + 1}


def test_a_checkpoint_of_one_replica_is_loaded_by_any_number(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path / "checkpoints")
    with training(tmp_path / "first", "AB", CHECKPOINTS=folder, EPOCHS="1") as (driver, _):
        driver.finish()
    with training(tmp_path / "second", "CDE", CHECKPOINTS=folder) as (driver, (first, *_)):
        found = driver.finish()
        assert_undisturbed(found)
        assert [step for _, step, _ in driver.steps_of(first)] == list(range(11, STEPS + 1))


@pytest.mark.parametrize("kind", [pytest.param("fsdp", marks=pytest.mark.nightly), "tp"])
def test_the_same_script_is_one_replica_under_torchrun(kind: str, tmp_path: pathlib.Path) -> None:
    environment: Any = {"KIND": kind, "HIDDEN": HIDDEN.get(kind, "17")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", os.fspath(SCRIPT)]
    given = {**os.environ, **environment, "OUTPUT": f"{tmp_path}/A{{local_rank}}"}
    subprocess.run(command, env=given, check=True)
    trained = Trained("A", [Run.read(tmp_path / f"A{rank}") for rank in range(2)])
    assert_undisturbed([trained], **environment)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        ("tp", "samples", "ranks 0 and 1 compute parts of the same layers, and were given different samples"),
        ("fsdp", "blocks", "ranks 0 and 1 have sharded different models"),
    ],
)
def test_ranks_of_a_replica_that_do_not_fit_together_end_before_the_first_step(
    kind: str, wrong: str, message: str, tmp_path: pathlib.Path
) -> None:
    with contextlib.closing(
        ReplicaDriver(tmp_path, {"KIND": kind, "HIDDEN": HIDDEN.get(kind, "17"), "WRONG": wrong})
    ) as driver:
        replica = driver.start_replica("A")
        replica.lost = True  # it ends with an error
        if wrong == "samples":
            wait_until(driver, lambda: replica.ready, "says hello")
            driver.plan_replicas([replica])
            driver.members = []  # it is not to be replaced
        wait_until(driver, lambda: None not in [rank.process.poll() for rank in replica.ranks], "all ranks end")
        for rank in replica.ranks:
            assert rank.process.returncode == 1
            assert message in driver.log_of(rank)
        assert driver.steps_of(replica) == []


def test_a_replica_that_shuffles_in_another_order_ends_with_an_error_and_the_others_train_on(
    tmp_path: pathlib.Path,
) -> None:
    with training(tmp_path, "AB", WRONG="seed") as (driver, (a, b)):
        wait_until(driver, lambda: b.lost, "B ends", failures=False)
        message = "this replica was given other data than the other replicas: seed=1 and seed=0"
        assert any(message in driver.log_of(rank) for rank in b.ranks)
        assert_undisturbed(driver.finish())
        assert driver.steps_of(b) == []
        assert [step for _, step, _ in driver.steps_of(a)] == list(range(1, STEPS + 1))


def test_a_replica_that_has_joined_keeps_its_state_if_one_that_leaves_hears_of_the_plan_first(
    tmp_path: pathlib.Path,
) -> None:
    """It leaves with the other one, whose vote tells of the plan, and does not enter the world that is over again."""
    with training(tmp_path, "A", later="B", STEP_SECONDS="0.02") as (driver, (a, b)):
        driver.wait_for_step(a, 2)
        joined = driver.plan_replicas([a, b], step_grace=0.5)
        wait_until(driver, lambda: all(rank.entered == joined for rank in b.ranks), "B has joined")
        driver.wait_for_step(b, 8)
        number = driver.plan_replicas([b], step_grace=0.5, told=[a])
        wait_until(driver, lambda: all(rank.waiting == number for rank in a.ranks), "A has left")
        for _ in range(100):
            driver.pump(0.01)  # B's ranks wait for the plan, or have entered the old world again
        driver.tell([b], step_grace=0.5)
        (found,) = driver.finish()
        assert found.distance(alone({})) < 1e-12


KINDS: dict[str, dict[str, str]] = {
    "clipping": {"CLIP": "0.05"},
    "accumulation": {"PARTS": "3"},
    "no-hook": {"HOOK": "0", "CLIP": "0.05"},
    "compiled": {"COMPILE": "aot_eager"},
    "tensor-parallel": {"KIND": "tp", "CLIP": "0.05"},
    "both": {"KIND": "fsdp+tp"},
    "pipeline": {"KIND": "pp"},
    "pipeline-GPipe": {"KIND": "pp", "SCHEDULE": "GPipe"},
    "one-rank": {"KIND": "plain"},
}


NIGHTLY = {"clipping", "accumulation", "no-hook", "compiled", "pipeline-GPipe"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly if kind in NIGHTLY else ()) for kind in KINDS]
)
def test_what_runs_inside_a_replica_goes_on_without_another_one(kind: str, tmp_path: pathlib.Path) -> None:
    goes_on_without_another_one(tmp_path, "AB" if RANKS.get(KINDS[kind].get("KIND", "")) == 4 else "ABC", KINDS[kind])


@pytest.mark.gpu(8)
@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_inside_a_replica_on_gpus_goes_on_without_another_one(kind: str, tmp_path: pathlib.Path) -> None:
    goes_on_without_another_one(tmp_path, "AB", {**KINDS[kind], **ON_GPUS})


def goes_on_without_another_one(folder: pathlib.Path, names: str, environment: Any) -> None:
    """One rank of the replica B is killed before a vote."""
    kind = environment.get("KIND", "fsdp")
    with training(folder, names, killed("B", "vote", RANKS.get(kind, 2) - 1), **environment) as (driver, _):
        found = driver.finish()
        assert [replica.name for replica in found] == [name for name in names if name != "B"]
        assert_undisturbed(found, **environment, HIDDEN=HIDDEN.get(kind, "17"))


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "seed", "fake_nccl"),
    [("fsdp", 1, ""), ("fsdp", 2, ""), ("tp", 3, ""), ("fsdp", 4, "1"), ("tp", 5, "1"), ("pp", 6, ""), ("pp", 7, "")],
)
def test_any_history_of_replicas_is_the_same_training(
    kind: str, seed: int, fake_nccl: str, tmp_path: pathlib.Path
) -> None:
    choose = random.Random(seed)
    environment: Any = {"KIND": kind, "EPOCHS": "15", "STEP_SECONDS": "0.05", "HIDDEN": HIDDEN.get(kind, "17")}
    environment["FAKE_NCCL"] = fake_nccl
    with training(tmp_path, "ABC", later="DE", **environment) as (driver, replicas):
        outside, history = replicas[3:], []
        for _ in range(10):
            driver.pump(choose.choice([0.05, 0.2, 0.5, 2.0]))
            driver.mend()
            driver.check()
            event, inside = choose.choice(["kill", "rank", "freeze", "join", "join", "leave"]), list(driver.members)
            if any(rank.process.poll() == 0 for replica in inside for rank in replica.ranks):
                break  # the training is over
            if event == "join":
                if outside:
                    driver.plan_replicas([*inside, outside.pop()], step_grace=choose.choice([0.0, 0.5]))
            elif sum(replica.entered == driver.round for replica in inside) >= 2:  # one that has the state remains
                victim = choose.choice(inside)
                inside.remove(victim)
                strike(victim, event, choose.randrange(2))
                driver.plan_replicas(inside, step_grace=0.5 if event == "leave" else 0.0)
                outside[:0] = [victim] if event == "leave" else []
            history.append(f"{event}: {' '.join(replica.name for replica in driver.members)}")
        print(f"seed {seed}:", *history, sep="\n  ")
        assert_undisturbed(driver.finish(), steps=150, **environment)


def strike(replica: Replica, event: str, rank: int) -> None:
    replica.lost = event != "leave"
    if event == "kill":
        replica.kill()
    elif event == "rank":
        replica.ranks[rank].kill()
    elif event == "freeze":
        replica.ranks[rank].freeze()
