"""Runs in every executed Python worker, before its script: the agent puts this folder first on its PYTHONPATH.

Forked workers do the same in workers/zygote/hooks.py. Without `site` (`python -S`) or the environment (`-E`, `-I`),
this does not run: the agent sees no steps of the script, and torch is unchanged.

It leaves nothing behind that the script could see: PYTHONPATH is as the user set it, and the user's own sitecustomize,
which this one hides, runs next. Programs of any Python 3 may start here, so nothing new is used.
"""

import atexit
import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _restore_paths() -> None:
    """Removes this folder from the search paths of this process and of those that it starts."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != _HERE]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def _install_hooks() -> None:
    folder, local_rank = os.environ.get("ELASTICJOB_STEPS_FOLDER"), os.environ.get("LOCAL_RANK")
    if folder:
        if local_rank and sys.version_info >= (3, 10):
            _count_steps_under_torchrun(os.path.join(folder, local_rank))
        return
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not error_file or sys.version_info < (3, 10):
        return
    auto_progress, flight_recorder = _module("auto_progress"), _module("flight_recorder")
    atexit.register(flight_recorder.save_at_exit, error_file, os.getpid())
    auto_progress.count_steps(error_file, functools.partial(flight_recorder.serve, error_file))
    _change_torch(auto_progress, dict(os.environ))
    auto_progress.write_stacks_on_signal(error_file)


def _change_torch(auto_progress: Any, environment: "dict[str, str]") -> None:
    patches = _module("patches", "workers", "zygote")

    def change(_distributed: Any) -> None:
        with contextlib.suppress(Exception):  # the script must be able to import any torch
            patches.apply_to_torch(environment)

    auto_progress.when_imported("torch.distributed", change)


def _count_steps_under_torchrun(folder: str) -> None:
    """torch's agent names the error file, so this process makes its page (torchrun/steps.py)."""
    auto_progress, error_file = _module("auto_progress"), os.path.join(folder, "error.json")
    os.makedirs(folder, exist_ok=True)
    auto_progress.create_page(auto_progress.page_file(error_file))
    auto_progress.count_steps(error_file)


def _module(name: str, *folders: str) -> Any:
    root = os.path.dirname(os.path.dirname(_HERE))
    path = os.path.join(root, *(folders or ("training",)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_elasticjob_{name}", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 a file that is there
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_users_own() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_restore_paths()
with contextlib.suppress(Exception):  # the script must run, whatever is wrong with our hooks
    _install_hooks()
_run_users_own()
