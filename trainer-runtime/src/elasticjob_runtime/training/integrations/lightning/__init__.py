"""For Lightning's Trainer.

`ElasticStrategy` continues in place: processes that remain do not restart, and no step is lost.

    trainer = Trainer(strategy=ElasticStrategy(global_batch_size=240))
    trainer.fit(model, DataLoader(dataset, shuffle=True))

`ElasticCallback` saves before planned changes, with any strategy: all processes restart, and no step is repeated.

- `strategy` is what users pass to the trainer; `training` joins it with a session
- `loops` are Lightning's, divided into what a change may interrupt and repeat
- `progress` is what a process that joins must know of them, and what an interruption undoes
"""

from typing import TYPE_CHECKING, Any

from elasticjob_runtime.training.integrations.lightning.callback import ElasticCallback

if TYPE_CHECKING:
    from elasticjob_runtime.training.integrations.lightning.strategy import ElasticStrategy

__all__ = ["ElasticCallback", "ElasticStrategy"]


def __getattr__(name: str) -> Any:
    if name == "ElasticStrategy":  # uses private names of Lightning, which another version may not have
        from elasticjob_runtime.training.integrations.lightning.strategy import ElasticStrategy

        return ElasticStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
