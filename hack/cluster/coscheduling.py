"""The scheduler of scheduler-plugins with its coscheduling plug-in, built from Go's module proxy, and its
configuration.

It is built in the folder of its own module: its `go.mod` has `replace` lines, which Go ignores in those of others.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from .programs import program_of_source, source_of_module

MODULE = "sigs.k8s.io/scheduler-plugins@v0.35.4-devel"
SCHEDULER = "coscheduling"
"""The name by which pods ask for it."""


def scheduler() -> Path:
    """The program. Raises ClusterError with the compiler's output."""
    return program_of_source(MODULE, "./cmd/scheduler", "coscheduling-scheduler")


def podgroup_crd() -> Path:
    return source_of_module(MODULE) / "config" / "crd" / "bases" / "scheduling.x-k8s.io_podgroups.yaml"


def write_configuration(path: Path, kubeconfig: Path | str) -> Path:
    """As the plug-in's own example, under a name of its own."""
    plugin = [{"name": "Coscheduling"}]
    profile = {
        "schedulerName": SCHEDULER,
        "plugins": {
            "multiPoint": {"enabled": plugin},
            "queueSort": {"enabled": plugin, "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
    }
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "profiles": [profile],
    }
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return path
