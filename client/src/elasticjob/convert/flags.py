"""The flags of torchrun and of the launchers that grew out of it, and what becomes of each: one table a launcher."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable


class Fate(enum.Enum):
    """What becomes of a flag."""

    SET = "becomes a field of the ElasticJob"
    KEPT = "stays, because elasticrun has it too"
    OPERATOR = "removed, because the operator sets it"
    IRRELEVANT = "removed, because elasticrun does not need it"
    CHANGED = "removed, because elasticrun does this differently"
    LOST = "removed, because elasticrun has nothing like it"


@dataclasses.dataclass(frozen=True)
class Flag:
    name: str
    """In torch's own spelling, with _ for -."""
    fate: Fate
    why: str = ""
    instead: str = ""
    switch: bool = False
    """It has no value."""
    to: str = ""
    """With SET: the field of the ElasticJob."""


def _operator(name: str, why: str = "the operator sets it for every worker pod", *, switch: bool = False) -> Flag:
    return Flag(name, Fate.OPERATOR, why, switch=switch)


_RDZV = "the operator chooses the rendezvous and tells elasticrun"

TORCHRUN = (
    Flag("nnodes", Fate.SET, to="spec.workers.minReplicas and maxReplicas"),
    Flag("nproc_per_node", Fate.SET, to="spec.workers.procsPerWorker"),
    Flag("max_restarts", Fate.SET, to="spec.restartPolicy.maxRestarts"),
    Flag("shutdown_timeout", Fate.SET, to="spec.lifecycle.gracefulShutdownSeconds"),
    _operator("rdzv_backend", _RDZV),
    _operator("rdzv_endpoint", _RDZV),
    _operator("rdzv_id", _RDZV),
    Flag("rdzv_conf", Fate.IRRELEVANT, "its settings are for torch's rendezvous, which an ElasticJob does not use"),
    _operator("standalone", _RDZV, switch=True),
    _operator("node_rank", "elasticrun assigns ranks at each rendezvous"),
    _operator("master_addr", "elasticrun chooses it at each rendezvous"),
    _operator("master_port", "elasticrun chooses it at each rendezvous"),
    _operator("local_addr", "the operator passes the pod's address"),
    Flag("monitor_interval", Fate.IRRELEVANT, "elasticrun does not poll: the kernel tells it when a process exits"),
    Flag("event_log_handler", Fate.IRRELEVANT, "elasticrun writes events with --events FILE"),
    Flag("use_env", Fate.IRRELEVANT, "elasticrun always passes the rank in the environment", switch=True),
    Flag(
        "start_method",
        Fate.CHANGED,
        "elasticrun forks worker processes from a process that has imported torch, which makes restarts fast",
        "if the script cannot be forked, add --start-method spawn to elasticrun",
    ),
    Flag("numa_binding", Fate.LOST, "elasticrun does not bind processes to NUMA nodes", "use numactl in the script"),
    Flag("logs_specs", Fate.LOST, "elasticrun has torch's default handling of logs only"),
    Flag("role", Fate.KEPT),
    Flag("module", Fate.KEPT, switch=True),
    Flag("m", Fate.KEPT, switch=True),
    Flag("no_python", Fate.KEPT, switch=True),
    Flag("run_path", Fate.KEPT, switch=True),
    Flag("redirects", Fate.KEPT),
    Flag("r", Fate.KEPT),
    Flag("tee", Fate.KEPT),
    Flag("t", Fate.KEPT),
    Flag("log_dir", Fate.KEPT),
    Flag("log_line_prefix_template", Fate.KEPT),
    Flag("local_ranks_filter", Fate.KEPT),
    Flag("duplicate_stdout_filters", Fate.KEPT),
    Flag("duplicate_stderr_filters", Fate.KEPT),
    Flag("signals_to_handle", Fate.KEPT),
    Flag("virtual_local_rank", Fate.KEPT, switch=True),
)

_CHECK = "ElasticJob does not test nodes before training"
_CHECK_INSTEAD = "it avoids nodes on which worker pods failed (spec.scheduling.avoidNodesAfter)"
_TUNE = "ElasticJob does not tune the training"

DLROVER_RUN = (
    *TORCHRUN,
    Flag("node_unit", Fate.SET, to="spec.workers.replicaStep"),
    Flag("auto_config", Fate.SET, to="spec.workers.procsPerWorker", switch=True),
    Flag("network_check", Fate.LOST, _CHECK, _CHECK_INSTEAD, switch=True),
    Flag("comm_perf_test", Fate.LOST, _CHECK, _CHECK_INSTEAD, switch=True),
    Flag("precheck", Fate.LOST, _CHECK, _CHECK_INSTEAD),
    Flag("exclude_straggler", Fate.LOST, "ElasticJob does not look for slow nodes", switch=True),
    Flag("auto_tunning", Fate.LOST, _TUNE, "set batch size and learning rate in the script", switch=True),
    Flag(
        "save_at_breakpoint",
        Fate.LOST,
        "elasticrun does not keep checkpoints in memory for the script",
        "call save_checkpoint of elasticjob_runtime.training often",
        switch=True,
    ),
    Flag("accelerator", Fate.IRRELEVANT, "elasticrun starts processes for any device"),
    Flag("training_port", Fate.IRRELEVANT, "elasticrun chooses ports; --port-range restricts them"),
    Flag("numa_affinity", Fate.LOST, "elasticrun does not bind processes to NUMA nodes", "use numactl", switch=True),
    Flag("membind_policy", Fate.LOST, "elasticrun does not bind memory to NUMA nodes", "use numactl"),
    Flag("ucp_device_type", Fate.LOST, "ElasticJob does not convert checkpoints"),
)

LAUNCHERS = {"torchrun": TORCHRUN, "dlrover-run": DLROVER_RUN, "elasticrun": TORCHRUN}
"""Program -> its flags."""
LAUNCHER_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "torchdistx.run": TORCHRUN,
    "torchelastic.distributed.launch": TORCHRUN,
    "bagua.distributed.run": TORCHRUN,
    "bagua.distributed.launch": TORCHRUN,
    "dlrover.trainer.torch.elastic_run": DLROVER_RUN,
    "dlrover.trainer.torch.main": DLROVER_RUN,
}
"""The same, as modules for `python -m`."""
LEGACY_LAUNCHERS = frozenset({"torch.distributed.launch", "bagua.distributed.launch"})
"""Those that pass --local-rank to the script unless told otherwise."""


def named(flags: Iterable[Flag], word: str) -> Flag | None:
    """The flag that a word such as `--rdzv-id=1` sets, also if it is abbreviated, as argparse allows.

    >>> named(TORCHRUN, "--nproc-per=4").name, named(TORCHRUN, "--max_restarts").name, named(TORCHRUN, "-r3").name
    ('nproc_per_node', 'max_restarts', 'r')
    """
    known = {flag.name: flag for flag in flags}
    if word.startswith("--"):
        name = word[2:].partition("=")[0].replace("-", "_")
        near = [flag for flag in known.values() if flag.name.startswith(name) and len(flag.name) > 1]
        return known.get(name) or (near[0] if len(near) == 1 else None)
    return known.get(word[1:2])
