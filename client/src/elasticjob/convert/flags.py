"""The flags of torchrun and of the launchers that grew out of it, and what becomes of each: one table a launcher.

A row's path is the flag in torch's own spelling, with _ for -. What is carried over to no field stays with elasticrun.
"""

from __future__ import annotations

from elasticjob.convert.table import Field, Table, changed, computed, irrelevant, lost

_RDZV = "the operator chooses the rendezvous and tells elasticrun"
_ASSIGNED = "elasticrun chooses it at each rendezvous"

TORCHRUN: Table = (
    computed("nnodes", "spec.workers.minReplicas and maxReplicas"),
    computed("nproc_per_node", "spec.workers.procsPerWorker"),
    computed("max_restarts", "spec.failurePolicy.maxRestarts"),
    computed("shutdown_timeout", "spec.lifecycle.gracefulShutdownSeconds"),
    irrelevant("rdzv_backend", _RDZV),
    irrelevant("rdzv_endpoint", _RDZV),
    irrelevant("rdzv_id", _RDZV),
    irrelevant("rdzv_conf", "its settings are for torch's rendezvous, which an ElasticJob does not use"),
    irrelevant("standalone", _RDZV),
    irrelevant("node_rank", "elasticrun assigns ranks at each rendezvous"),
    irrelevant("master_addr", _ASSIGNED),
    irrelevant("master_port", _ASSIGNED),
    irrelevant("local_addr", "the operator passes the pod's address"),
    irrelevant("monitor_interval", "elasticrun does not poll: the kernel tells it when a process exits"),
    irrelevant("event_log_handler", "elasticrun writes events with --events FILE"),
    irrelevant("use_env", "elasticrun always passes the rank in the environment"),
    changed(
        "start_method",
        "",
        "elasticrun forks worker processes from a process that has imported torch, which makes restarts fast",
        "if the script cannot be forked, add --start-method spawn to elasticrun",
    ),
    lost("numa_binding", "elasticrun does not bind processes to NUMA nodes", "use numactl in the script"),
    lost("logs_specs", "elasticrun has torch's default handling of logs only"),
    *map(
        computed,
        (
            "role", "module", "m", "no_python", "run_path", "redirects", "r", "tee", "t", "log_dir",
            "log_line_prefix_template", "local_ranks_filter", "duplicate_stdout_filters", "duplicate_stderr_filters",
            "signals_to_handle", "virtual_local_rank",
        ),
    ),
)  # fmt: skip

_CHECK = "ElasticJob does not test nodes before training"
_CHECK_INSTEAD = "it avoids nodes on which worker pods failed (spec.scheduling.avoidNodesAfter)"

ONLY_DLROVER_RUN: Table = (
    computed("node_unit", "spec.workers.allowedReplicas"),
    computed("auto_config", "spec.workers.procsPerWorker"),
    lost("network_check", _CHECK, _CHECK_INSTEAD),
    lost("comm_perf_test", _CHECK, _CHECK_INSTEAD),
    lost("precheck", _CHECK, _CHECK_INSTEAD),
    lost("exclude_straggler", "ElasticJob does not look for slow nodes"),
    lost("auto_tunning", "ElasticJob does not tune the training", "set batch size and learning rate in the script"),
    lost(
        "save_at_breakpoint",
        "elasticrun does not keep checkpoints in memory for the script",
        "call save_checkpoint of elasticjob_runtime.training often",
    ),
    irrelevant("accelerator", "elasticrun starts processes for any device"),
    irrelevant("training_port", "elasticrun chooses ports; --port-range restricts them"),
    lost("numa_affinity", "elasticrun does not bind processes to NUMA nodes", "use numactl"),
    lost("membind_policy", "elasticrun does not bind memory to NUMA nodes", "use numactl"),
    lost("ucp_device_type", "ElasticJob does not convert checkpoints"),
)
_DLROVER_RUN: Table = (*TORCHRUN, *ONLY_DLROVER_RUN)

SWITCHES = frozenset(
    {
        "auto_config", "auto_tunning", "comm_perf_test", "exclude_straggler", "m", "module", "network_check",
        "no_python", "numa_affinity", "run_path", "save_at_breakpoint", "standalone", "use_env", "virtual_local_rank",
    }
)  # fmt: skip
"""Flags without a value."""

LAUNCHERS: dict[str, Table] = {"torchrun": TORCHRUN, "dlrover-run": _DLROVER_RUN, "elasticrun": TORCHRUN}
"""Program -> its flags."""
LAUNCHER_MODULES: dict[str, Table] = {
    **{f"{package}.distributed.run": TORCHRUN for package in ("torch", "bagua")},
    **{f"{package}.distributed.launch": TORCHRUN for package in ("torch", "bagua", "torchelastic")},
    "torchdistx.run": TORCHRUN,
    "dlrover.trainer.torch.elastic_run": _DLROVER_RUN,
    "dlrover.trainer.torch.main": _DLROVER_RUN,
}
"""The same, as modules for `python -m`."""
LEGACY_LAUNCHERS = frozenset({"torch.distributed.launch", "bagua.distributed.launch"})
"""Those that pass --local-rank to the script unless told otherwise."""


def named(flags: Table, word: str) -> Field | None:
    """The flag that a word such as `--rdzv-id=1` sets, also if it is abbreviated, as argparse allows.

    >>> named(TORCHRUN, "--nproc-per=4").path, named(TORCHRUN, "--max_restarts").path, named(TORCHRUN, "-r3").path
    ('nproc_per_node', 'max_restarts', 'r')
    """
    known = {flag.path: flag for flag in flags}
    if word.startswith("--"):
        name = word[2:].partition("=")[0].replace("-", "_")
        near = [flag for flag in flags if flag.path.startswith(name) and len(flag.path) > 1]
        return known.get(name) or (near[0] if len(near) == 1 else None)
    return known.get(word[1:2])
