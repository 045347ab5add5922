"""The etcd v3 rendezvous as a torchrun plug-in: `torchrun --rdzv-backend=etcd-v3 --rdzv-endpoint=... train.py`.

torch finds `rendezvous_handlers` through the entry point `torchrun.handlers`; everything else is imported when a job
selects this backend.

    options.py      what --rdzv-endpoint and --rdzv-conf mean
    policy.py       what to do next: membership.decide, where torch's agent starts and stops the workers (pure)
    member.py       one member of the job: the thread that observes, decides and executes
    stale_run.py    clears the keys of an ended job with the same run id
    round_store.py  the TCPStore of each round, in which all members meet
    handler.py      torch's RendezvousHandler

Apart from `training` and the zygote, this is the only package that imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "etcd-v3"


def rendezvous_handlers() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """torch's registry calls this at every start of torchrun, whatever the backend, so it does nothing but return the
    factory."""
    return create_handler


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Returns a handler for one run. Sends nothing yet. Raises handler.SettingsError, one sentence, if a flag is
    wrong."""
    from elasticjob_runtime.torchrun import handler

    return handler.create(parameters)
