"""Trains what script.py trains, with Accelerate. Between steps, evaluates with a prepared data loader.

ACCUMULATE: micro-batches of each step."""

from __future__ import annotations

import json
import os
import pathlib
import time

import torch
from accelerate import Accelerator
from elasticjob_runtime.training.integrations.accelerate import ElasticAccelerator

from hack.chaos.script import BATCH, SAMPLES, SLOW, Model, Samples, setting

TESTED = 10
"""Samples of an evaluation: not a multiple of what three processes take at once."""


class Tests(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return TESTED

    def __getitem__(self, index: int) -> int:
        return index


def evaluate(accelerator: Accelerator, loader: torch.utils.data.DataLoader[int]) -> list[int]:
    with torch.no_grad():
        return torch.cat([accelerator.gather_for_metrics(batch) for batch in loader]).tolist()


def main() -> None:
    torch.set_num_threads(1)
    local_rank = os.environ.get("ELASTICJOB_LOCAL_RANK", "0")
    output = os.environ["OUTPUT"].replace("{local_rank}", local_rank)
    with pathlib.Path(f"{output}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    parts = int(setting("ACCUMULATE", "1"))
    accelerator = ElasticAccelerator(cpu=True, gradient_accumulation_steps=parts)
    model = Model()
    plain = torch.optim.SGD([model.seen], lr=BATCH)
    adam = torch.optim.AdamW([model.weights, *model.more], lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, 10, gamma=0.9)
    tests = accelerator.prepare(torch.utils.data.DataLoader(Tests(), batch_size=2))
    trained, plain, adam, scheduler = accelerator.prepare(model, plain, adam, scheduler)
    session = accelerator.session(model=trained, optimizer=adam, scheduler=scheduler, plain=plain)
    changes: list[int] = []
    session.on_change(lambda session: changes.append(session.world_size))
    evaluated = 0
    with pathlib.Path(f"{output}.steps").open("a") as steps:
        for epoch in range(session.epoch, int(setting("EPOCHS", "2"))):
            for batch in session.batches(Samples(), batch_size=BATCH, epoch=epoch):
                assert (accelerator.num_processes, accelerator.process_index) == (session.world_size, session.rank)
                with session.step():
                    time.sleep(setting("SLOW_SECONDS" if os.path.exists(SLOW) else "STEP_SECONDS", "0"))
                    for _ in range(parts):
                        with accelerator.accumulate(trained):
                            accelerator.backward(trained(batch))
                            plain.step()
                            adam.step()
                            scheduler.step()
                            plain.zero_grad()
                            adam.zero_grad()
                steps.write(f"{time.monotonic()} {session.committed_steps} {session.world_size}\n")
                steps.flush()
                found = (
                    session.evaluate(lambda: evaluate(accelerator, tests)) if session.committed_steps % 5 == 0 else None
                )
                if found is not None:
                    assert sorted(found) == list(range(TESTED)), found
                    evaluated += 1
    assert model.seen.shape == (SAMPLES,)
    state = {"model": model.state_dict(), "adam": adam.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save(state, f"{output}.pt")
    facts = {"committed": session.committed_steps, "changes": changes, "evaluated": evaluated}
    pathlib.Path(f"{output}.json").write_text(json.dumps(facts))


main()
