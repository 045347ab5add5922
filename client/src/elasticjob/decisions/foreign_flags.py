"""Flags of other launchers, and what they are called here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MEANT: Mapping[str, str] = {
    "--nnodes": "--workers MIN:MAX",
    "--num-workers": "--workers",
    "--num-nodes": "--workers",
    "--nodes": "--workers",
    "--worker": "--workers",
    "--nproc-per-node": "--procs-per-worker",
    "--nproc_per_node": "--procs-per-worker",
    "--gpu": "--gpus",
    "--num-gpus": "--gpus",
    "--project": "--namespace",
    "-p": "--namespace",
    "--output-format": "--output",
    "--container": "--rank",
    "--timestamp": "--timestamps",
    "--env-var": "--env",
    "--pvc": "--existing-pvc CLAIM:/path",
    "--new-pvc": "--existing-pvc CLAIM:/path, for a PersistentVolumeClaim that exists",
    "--checkpoint": "--checkpoint-claim CLAIM",
    "--checkpoint-pvc": "--checkpoint-claim CLAIM",
    "--name": "the name as the first argument: elasticjob submit NAME",
    "--gpu-portion-request": "--gpus: a worker pod has whole GPUs",
    "--gpu-memory-request": "--gpus: a worker pod has whole GPUs",
    "--master-args": "-- COMMAND: all worker pods run the same command",
    "--no-master": "nothing: all worker pods are alike",
    "--attach": "--follow",
    "--tty": "nothing: worker pods have no terminal",
    "--stdin": "nothing: worker pods have no terminal",
    "--rdzv-backend": "nothing: the operator sets up the rendezvous",
    "--rdzv-endpoint": "nothing: the operator sets up the rendezvous",
    "--rdzv-id": "nothing: the operator sets up the rendezvous",
    "--standalone": "--workers 1",
    "--replica": "--replicas",
}


def meant(flag: str, similar: Sequence[str]) -> str:
    """What the user probably meant; empty if it cannot be told. `similar`: flags with a similar name.

    >>> meant("--nnodes", [])
    'Did you mean --workers MIN:MAX?'
    """
    name = flag.partition("=")[0]
    if name in _MEANT:
        known = _MEANT[name]
        if known.startswith("nothing: "):
            return f"Leave it out: {known.removeprefix('nothing: ')}."
        return f"Use {known}." if ":" in known and " " in known and "MIN" not in known else f"Did you mean {known}?"
    return f"Did you mean {' or '.join(sorted(similar))}?" if similar else ""
