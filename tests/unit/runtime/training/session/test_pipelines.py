"""A pipeline that is built once is trained with shares of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elasticjob_runtime.training.session.pipelines import Pipelines
from elasticjob_runtime.training.session.world import SessionError
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = [ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B]

pytestmark = pytest.mark.usefixtures("group")


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean()


class Pipeline:
    def __init__(self, schedule: Any, *, stages: int | None = None) -> None:
        """stages: of all processes, of which this one has one. None: it has all."""
        torch.manual_seed(1)
        several = schedule is ScheduleInterleaved1F1B
        self.model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(2 if several else 1)))
        count = stages or len(self.model)
        self.stages = [
            PipelineStage(item, number, count, torch.device("cpu")) for number, item in enumerate(self.model)
        ]
        self.schedule = schedule(self.stages if several else self.stages[0], n_microbatches=2, loss_fn=loss)

    def step(self, samples: int) -> torch.Tensor:
        torch.manual_seed(samples)
        inputs = torch.randn(samples, 3)
        self.model.zero_grad()
        self.schedule.step(inputs, target=inputs.flip(0), losses=[])
        found = torch.cat(
            [parameter.grad.flatten() for parameter in self.model.parameters() if parameter.grad is not None]
        )
        self.model.zero_grad()
        loss(self.model(inputs), inputs.flip(0)).backward()
        expected = torch.cat(
            [parameter.grad.flatten() for parameter in self.model.parameters() if parameter.grad is not None]
        )
        torch.testing.assert_close(found, expected)
        return found

    def knows_shapes(self) -> bool:
        return any(stage.args_recv_info for stage in self.stages)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("change", [(1, 6), (2, 4)], ids=["another share", "another world"])
def test_a_schedule_begins_anew(schedule: Any, change: tuple[int, int]) -> None:
    pipeline, pipelines = Pipeline(schedule), Pipelines()
    pipelines.begin(1, 4)
    first = pipeline.step(4)
    pipelines.begin(1, 4)
    assert pipeline.knows_shapes(), "nothing is found out again as long as the share is the same"
    pipelines.begin(*change)
    assert not pipeline.knows_shapes()
    pipeline.step(change[1])
    pipelines.begin(3, 4)
    torch.testing.assert_close(pipeline.step(4), first)


def test_a_schedule_that_was_used_for_an_evaluation_first_trains_nevertheless() -> None:
    pipeline, pipelines = Pipeline(ScheduleGPipe), Pipelines()
    pipelines.begin(1, 4)
    with torch.no_grad():
        pipeline.schedule.eval(torch.ones(4, 3), target=torch.ones(4, 3), losses=[])
    pipeline.step(4)
    pipelines.begin(1, 6)
    pipeline.step(6)


def test_a_batch_without_whole_microbatches_gets_an_error_that_says_what_to_choose() -> None:
    pipeline, pipelines = Pipeline(ScheduleGPipe, stages=2), Pipelines()
    pipelines.begin(1, 5)
    with pytest.raises(SessionError, match="5 samples cannot be divided into 2 microbatches"):
        pipeline.step(5)
