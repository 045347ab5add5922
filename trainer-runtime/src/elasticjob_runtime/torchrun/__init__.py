"""Level 0: etcd v3 rendezvous for torchrun itself, `torchrun --rdzv-backend=etcd-v3 --rdzv-endpoint=... train.py`.

torch finds `rendezvous_handlers` by the entry point `torchrun.handlers`; everything else is imported when a job asks
for this backend.

    options.py   what --rdzv-endpoint and --rdzv-conf say
    policy.py    what to do next: membership.decide, where torch's agent starts and stops the workers (pure)
    member.py    one member of the job: the thread that observes, decides and executes
    stale_run.py what a job of the same run id left behind
    round_store.py the fresh TCPStore of each round, and the meeting of all members in it
    handler.py   torch's RendezvousHandler

The only package beside `training` and the zygote that imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "etcd-v3"


def rendezvous_handlers() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torch's registry calls at every start of torchrun, whatever its backend: so it does nothing yet."""
    return create_handler


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """A handler for one run. Nothing is sent yet. Raises handler.SettingsError, one sentence, where a flag is wrong."""
    from elasticjob_runtime.torchrun import handler

    return handler.create(parameters)
