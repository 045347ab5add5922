"""How the stacks of a worker pod's processes are read. Pure."""

from __future__ import annotations

from typing import Any

INJECTED = "/opt/elasticjob"
"""Where the operator mounts the runtime in images that have none."""
PROGRAM = (
    f"import runpy, sys; sys.path.append('{INJECTED}/python'); "
    "runpy.run_module('elasticjob_runtime.agent.stacks', run_name='__main__')"
)


def command_in(pod: Any, container: str) -> list[str]:
    """The command to run in `container` of `pod`: with the Python that has started the runtime, and without a shell,
    which the image may lack."""
    containers = pod.get("spec", {}).get("containers") or []
    command = next((one.get("command") or [] for one in containers if one.get("name") == container), [])
    injected = len(command) > 1 and str(command[1]).startswith(f"{INJECTED}/")
    return [str(command[0]) if injected else "python3", "-c", PROGRAM]
