"""Training that continues in place when processes are lost and join; see `ElasticSession`.

- `session` is what scripts use; `engine` moves the process from one world to the next
- `world` (what processes agree on) and `feed` (who trains on which samples) are decisions without I/O
- `torch_private` alone knows what torch does not document; `port` is the agent's side
"""

from elasticjob_runtime.training.session.session import ElasticSession
from elasticjob_runtime.training.session.world import SessionError

__all__ = ["ElasticSession", "SessionError"]
