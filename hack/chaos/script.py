"""The training script of everything that injects faults: the chaos suite, `make bench-recovery`, `make random-run`, and
the tests of sessions.

With MODE=session (the default), an ElasticSession continues in place. All sums of gradients are exact, so that the
weights after a run are the same, bit by bit, in whatever worlds it took place: a sample that is lost, seen twice,
weighted wrongly, or used after another one shows. With MODE=checkpoint, rank 0 saves checkpoints, and all processes
restart at a change.

Environment: SAMPLES, BATCH, PACE (least seconds from one step to the next), CHECKPOINTS (a folder) and EVERY (steps
between two checkpoints); LEDGER (a folder); OUTPUT (prefix of the files with pids, steps, and the state at the end);
ORDERS (a folder in which the chaos suite leaves files: `<member>` with one word (exit, hog, fill), and `finish` with
the last step).
Of a session only: SHARDED (1: the model is sharded with FSDP2 over the ranks of a replica); EPOCHS, LOADERS; STREAMS
(from how many the same samples come, in the same order; BATCH, if ranks are to have as many samples as without);
BREAK_AT (the step after which the epoch is left, once the file BREAK_WHEN exists); STEP_SECONDS that a step takes; SLOW
(a file) and SLOW_SECONDS (instead of STEP_SECONDS while that file exists); DEVICE and BACKEND (cuda:0, nccl);
SNAPSHOT_EVERY (steps); BALLAST and BALLAST_PART (MiB); HOLD (a file: while it exists, the script waits before its
session), CRASH (a file: while it exists, the script fails as it starts).

Each worker process has its own file in LEDGER, with one JSON object per line (ledger.py reads it):

    begin     member, process id, rank, world, round: of this process
    group     the group's token, which rank 0 draws and sends to all: two groups never have the same, whatever their
              round numbers
    load      rank 0 is about to read the newest checkpoint
    restore   it read one (step, digest), or none (step 0)
    work      this rank is about to train on these samples
    done      the step is complete on all ranks: of which generation (token, or round of a session) and world
    saving    rank 0 is about to commit a checkpoint (step, digest)
    saved     it is committed
    refused   it was not: the error
    end       all steps are done

Times are CLOCK_MONOTONIC: the same clock for all containers of one machine, unaffected by changes of the time of day.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import pathlib
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.data.permutation import Permutation
from elasticjob_runtime.training import CheckpointError, load_checkpoint, report_progress, save_checkpoint
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from elasticjob_runtime.training import ElasticSession

WIDTH = 8


def setting(name: str, default: str) -> float:
    return float(os.environ.get(name, default))


PACE = setting("PACE", "0")
SLOW = os.environ.get("SLOW", "")
DEVICE, BACKEND = os.environ.get("DEVICE", "cpu"), os.environ.get("BACKEND", "gloo")
SAMPLES, BATCH, EVERY = int(setting("SAMPLES", "512")), int(setting("BATCH", "16")), int(setting("EVERY", "5"))
STREAMS = int(setting("STREAMS", "0"))
MEMBER = os.environ.get("ELASTICJOB_MEMBER_ID", "member")
CHECKPOINTS, ORDERS = os.environ.get("CHECKPOINTS", ""), os.environ.get("ORDERS", "")


class Ledger:
    """Appends complete lines, with one write each, so that in a killed process at most the last one is incomplete."""

    def __init__(self) -> None:
        self._file = -1
        if folder := os.environ.get("LEDGER", ""):
            os.makedirs(folder, exist_ok=True)
            path = f"{folder}/{MEMBER}.{time.monotonic_ns()}.{os.getpid()}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.write(
            "begin",
            member=MEMBER,
            process=os.getpid(),
            rank=int(os.environ.get("RANK", "0")),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            round=int(os.environ.get("ELASTICJOB_ROUND", "0")),
            run=os.environ.get("TORCHELASTIC_RUN_ID", ""),
            fence=os.environ.get("ELASTICJOB_FENCE", ""),
        )

    def write(self, event: str, **fields: Any) -> None:
        if self._file >= 0:
            os.write(self._file, (json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n").encode())


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *((index * k) % 13 for k in range(1, WIDTH + 1))])


def open_stream(stream: int, epoch: int) -> Iterator[torch.Tensor]:
    """As `session.batches` shuffles them."""
    order = Permutation(SAMPLES, key=f"0:{epoch}")
    return (Samples()[order[position]] for position in range(stream, SAMPLES, STREAMS))


def batches(session: ElasticSession, epoch: int) -> Iterator[torch.Tensor]:
    loaders = int(setting("LOADERS", "0"))
    if STREAMS:
        return session.stream(open_stream, streams=STREAMS, batch_size=BATCH, epoch=epoch, num_workers=loaders)
    return session.batches(Samples(), batch_size=BATCH, epoch=epoch, num_workers=loaders)


class Ballast(torch.nn.Module):
    """A large state that is not trained: BALLAST MiB, of numbers that differ between processes."""

    def __init__(self) -> None:
        super().__init__()
        size = int(setting("BALLAST_PART", "1"))
        for number in range(int(setting("BALLAST", "0")) // size):
            part = torch.full((size * 2**17,), float(os.getpid()), dtype=torch.float64)
            self.register_parameter(f"part_{number}", torch.nn.Parameter(part, requires_grad=False))

    @property
    def numbers(self) -> list[float]:
        return sorted({number for part in self.parameters() for number in part.unique().tolist()})


class Model(torch.nn.Module):
    """`seen` has minus the number of times that each sample was trained on. `weights` has gradients that depend on the
    weights and the samples, but are whole numbers. `steps` is a buffer, changed in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.weights = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
        self.more = torch.nn.ParameterList(torch.zeros(WIDTH, dtype=torch.float64) for _ in range(3))
        self.ballast = Ballast()
        self.steps: torch.Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The mean over the batch."""
        self.steps += 1
        count = torch.zeros(SAMPLES, dtype=torch.float64, device=batch.device).index_add_(
            0, batch[:, 0], torch.ones(len(batch), dtype=torch.float64, device=batch.device)
        )
        loss = (self.seen * (count / len(batch))).sum()
        for weights in (self.weights, *self.more):
            gradients = torch.remainder(torch.floor(weights * 64).detach() * 3 + batch[:, 1:], 17) - 8
            loss = loss + (weights * (gradients.sum(0) / len(batch))).sum()
        return loss


class Training:
    """The model, and how it is trained. `options`: of DistributedDataParallel."""

    def __init__(self, **options: Any) -> None:
        self.model = Model().to(DEVICE)
        self.trained = DistributedDataParallel(self.model, **options) if dist.is_initialized() else self.model
        self.plain = torch.optim.SGD([self.model.seen], lr=BATCH)
        self.adam: torch.optim.Optimizer = torch.optim.AdamW([self.model.weights, *self.model.more], lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.adam, 10, gamma=0.9)

    def step(self, batch: torch.Tensor, share: float = 1.0) -> None:
        """`share`: weight of this rank's mean where DistributedDataParallel takes that of all ranks."""
        self.plain.zero_grad()
        (self.trained(batch.to(DEVICE)) * share).backward()
        self.plain.step()
        self.adam.step()
        self.adam.zero_grad(set_to_none=False)
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        model = {name: value for name, value in self.model.state_dict().items() if not name.startswith("ballast")}
        return {"model": model, "adam": self.adam.state_dict(), "scheduler": self.scheduler.state_dict()}


class Sharded(Training):
    """FSDP2 over the ranks of a replica, with one optimizer; the same training with plain python."""

    def __init__(self) -> None:
        self.model = self.trained = Model()
        if dist.is_initialized():
            from torch.distributed.fsdp import fully_shard  # takes long

            fully_shard(self.model)
        groups: list[dict[str, Any]] = [
            {"params": [self.model.seen], "lr": float(BATCH), "momentum": 0.0},
            {"params": [self.model.weights, *self.model.more]},
        ]
        self.adam = torch.optim.SGD(groups, lr=2.0**-5, momentum=0.5)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.adam, 10**9)

    def step(self, batch: torch.Tensor, share: float = 1.0) -> None:
        (self.trained(batch) * share).backward()
        self.adam.step()
        self.adam.zero_grad()

    def state(self) -> dict[str, Any]:
        """Collective inside the replica."""
        return {
            name: value.full_tensor() if hasattr(value, "full_tensor") else value
            for name, value in super().state()["model"].items()
        }


class Checkpointed(Training):
    """All ranks resume from what rank 0 reads."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.sampler = ElasticDistributedSampler(range(SAMPLES), self.world, self.rank, seed=0)
        self.taken = 0
        self.token = ""

    def state(self) -> dict[str, Any]:
        return {**super().state(), "sampler": self.sampler.state_dict(), "step": self.taken}

    def digest(self) -> str:
        """A digest of everything that training depends on."""
        found = hashlib.sha256(json.dumps([self.taken, self.sampler.state_dict()], default=str).encode())
        moments = [item[name] for item in self.adam.state.values() for name in ("exp_avg", "exp_avg_sq")]
        for tensor in (*self.model.parameters(), *moments):
            found.update(tensor.detach().numpy().tobytes())
        return found.hexdigest()[:16]

    def start(self) -> None:
        """Under the token that rank 0 draws."""
        told: list[Any] = [None, None]
        if self.rank == 0:
            self.ledger.write("load")
            told = [uuid.uuid4().hex[:12], load_checkpoint(CHECKPOINTS)]
        if self.world > 1:
            dist.broadcast_object_list(told)
        self.token, state = told
        self.ledger.write("group", token=self.token)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.adam.load_state_dict(state["adam"])
            self.scheduler.load_state_dict(state["scheduler"])
            self.sampler.load_state_dict(state["sampler"])
            self.taken = state["step"]
        if self.rank == 0:
            self.ledger.write("restore", step=self.taken, digest=self.digest())
            print(f"{'started' if state is None else 'resumed'} step={self.taken} world={self.world}", flush=True)

    def train(self) -> None:
        data = Samples()
        last = last_step()
        while last is None or self.taken < last:
            for samples in self.sampler.batches(BATCH):
                until = time.monotonic() + PACE
                obey(self.ledger)
                self.ledger.write(
                    "work", step=self.taken + 1, epoch=self.sampler.epoch, samples=samples, generation=self.token
                )
                count = min(BATCH, SAMPLES - self.sampler.consumed)
                self.step(torch.stack([data[index] for index in samples]), len(samples) * self.world / count)
                self.sampler.advance(count)
                self.taken += 1
                self.ledger.write("done", step=self.taken, generation=self.token, world=self.world)
                if self.rank == 0:
                    self.save()
                    report_progress(self.taken)
                last = last_step()
                if last is not None and self.taken >= last:
                    return
                time.sleep(max(0.0, until - time.monotonic()))
            self.sampler.set_epoch(self.sampler.epoch + 1)

    def save(self) -> None:
        if self.taken % EVERY:
            return
        self.ledger.write("saving", step=self.taken, digest=self.digest())
        try:
            save_checkpoint(CHECKPOINTS, self.state())
        except CheckpointError as error:
            self.ledger.write("refused", step=self.taken, error=str(error))
            raise
        self.ledger.write("saved", step=self.taken)


def last_step() -> int | None:
    """The step after which all ranks end; None: not set yet. It is far enough ahead that every rank reads it in
    time."""
    with contextlib.suppress(OSError, ValueError):
        return int(pathlib.Path(ORDERS, "finish").read_text()) if ORDERS else None
    return None


def obey(ledger: Ledger) -> None:
    """Carries out the suite's order to this member, once."""
    order = pathlib.Path(ORDERS, MEMBER)
    if not ORDERS or not order.exists():
        return
    word = order.read_text().strip()
    with contextlib.suppress(OSError):
        order.unlink()
    ledger.write("order", word=word)
    if word == "exit":
        sys.exit(7)
    elif word == "hog":
        kept = []
        while True:
            kept.append(bytearray(b"x" * 16_000_000))
    elif word == "fill":
        with contextlib.suppress(OSError), open(pathlib.Path(CHECKPOINTS).parent / "filler", "wb") as filler:
            while True:
                filler.write(b"x" * 65536)
                filler.flush()


def in_session(ledger: Ledger, output: str, in_step: Callable[[ElasticSession], None]) -> None:
    """`in_step`: called in each step, before its gradients are used."""
    from elasticjob_runtime.training import ElasticSession  # not where checkpoints alone are measured

    sharded = os.environ.get("SHARDED") == "1"
    training = Sharded() if sharded else Training(bucket_cap_mb=0.001)
    more: dict[str, Any] = {} if sharded else {"plain": training.plain}
    session = ElasticSession(model=training.trained, optimizer=training.adam, scheduler=training.scheduler, **more)
    if CHECKPOINTS:
        session.checkpoint(CHECKPOINTS, every=EVERY)
    changes: list[float] = []
    session.on_change(lambda session: changes.append(session.world_size))
    waits: dict[str, Any] = {}
    with pathlib.Path(f"{output}.steps").open("a") as steps:
        for epoch in range(session.epoch, int(setting("EPOCHS", "2"))):
            for batch in batches(session, epoch):
                until = time.monotonic() + PACE
                if waits and session.committed_steps >= waits["step"]:
                    ledger.write("done", **waits)  # on another process, which then counts for all
                world = {"generation": str(session.round), "step": session.committed_steps + 1}
                ledger.write("work", **world, epoch=epoch, samples=batch[:, 0].tolist())
                waits = {**world, "world": session.world_size * session.replicas}
                with session.step():
                    session.values["steps"] = session.values.get("steps", 0) + 1
                    time.sleep(setting("SLOW_SECONDS" if os.path.exists(SLOW) else "STEP_SECONDS", "0"))
                    in_step(session)
                    training.step(batch, session.weight if sharded else 1.0)
                    done, waits = waits, {}
                if not waits:
                    ledger.write("done", **done)
                steps.write(f"{time.monotonic()} {session.committed_steps} {session.world_size}\n")
                steps.flush()
                time.sleep(max(0.0, until - time.monotonic()))
                if session.committed_steps == int(setting("BREAK_AT", "-1")):
                    while not os.path.exists(os.environ["BREAK_WHEN"]):
                        time.sleep(0.01)
                    break
    torch.save(training.state(), f"{output}.pt")
    facts: dict[str, Any] = {
        "rank": session.rank,
        "committed": session.committed_steps,
        "epoch": session.epoch,
        "changes": changes,
    }
    assert session.values["steps"] == session.committed_steps
    facts["ballast"] = training.model.ballast.numbers
    pathlib.Path(f"{output}.json").write_text(json.dumps(facts))
    if sharded and dist.is_initialized():
        dist.barrier()  # the others of this replica may still need this one


def main(in_step: Callable[[ElasticSession], None] = lambda _: None) -> None:
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    ledger = Ledger()
    if os.environ.get("MODE") == "checkpoint":
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("gloo")
        training = Checkpointed(ledger)
        training.start()
        training.train()
        ledger.write("end", step=training.taken)
        if training.world > 1:
            dist.barrier()
            dist.destroy_process_group()
        return
    if interval := int(setting("SNAPSHOT_EVERY", "0")):  # as if each took so long
        from elasticjob_runtime.training.memory import Pace

        setattr(Pace, "interval", interval)  # noqa: B010 mypy
    if DEVICE != "cpu":
        torch.cuda.set_device(DEVICE)
    local_rank = os.environ.get("ELASTICJOB_LOCAL_RANK", "0")
    output = os.environ.get("OUTPUT", "/tmp/session").replace("{local_rank}", local_rank)
    with pathlib.Path(f"{output}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    if "RANK" in os.environ:
        dist.init_process_group(BACKEND)
    elif os.environ.get("ELASTICJOB_IN_PLACE"):
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    while os.path.exists(os.environ.get("HOLD", "")):
        time.sleep(0.05)
    if os.path.exists(os.environ.get("CRASH", "")):
        raise RuntimeError("this machine is broken")
    in_session(ledger, output, in_step)
    ledger.write("end")


if __name__ == "__main__":
    main()
