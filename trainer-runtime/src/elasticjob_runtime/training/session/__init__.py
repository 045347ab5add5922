"""Training that continues in place when processes are lost and join; see `ElasticSession`.

- `session` is what scripts use; `engine` moves the process from one world to the next
- `world` (what processes agree on) and `feed` (who trains on which samples) are decisions without I/O
- `backend` is what a session needs of gloo; `forming` and `transfer` use it
- `replicas` is the backend for sharded models, `replica_state` their state, `data_parallel` who takes which samples
- `torch_private` alone knows what torch does not document; `agent` is the agent's side

Importing this package does not import torch: the tests of what processes agree on need none.
"""

from typing import TYPE_CHECKING, Any

from elasticjob_runtime.training.session.world import SessionError

if TYPE_CHECKING:
    from elasticjob_runtime.training.session.session import ElasticSession

__all__ = ["ElasticSession", "SessionError"]


def __getattr__(name: str) -> Any:
    if name == "ElasticSession":
        from elasticjob_runtime.training.session.session import ElasticSession

        return ElasticSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
