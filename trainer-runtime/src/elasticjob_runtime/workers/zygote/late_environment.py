"""Applies environment variables in a forked worker that its libraries read when they were loaded, in the zygote.

This happens twice: when the worker gets its environment (the agent itself sets OMP_NUM_THREADS), and when the script
first imports torch, because scripts set variables in their first lines. The agent logs variables that a loaded library
cannot apply any more.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""What torch takes its number of intra-op threads from; the first that is set counts. No variable sets the number of
inter-op threads."""

CONFIGS = (
    "torch._dynamo.config",
    "torch._inductor.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
    "torch.compiler.config",
)
"""Modules of torch whose settings default to environment variables."""

LOADED_ONCE = (
    "KMP_",
    "GOMP_",
    "OMP_",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "PYTORCH_JIT",
    "OPENBLAS_CORETYPE",
)
"""Variables, or their prefixes, that a library reads when it is loaded and never again."""

OPENBLAS_THREADS = "OPENBLAS_NUM_THREADS"

DISTRIBUTED_DEBUG, LOGS = "TORCH_DISTRIBUTED_DEBUG", ("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT")


def threads(environment: Mapping[str, str]) -> int | None:
    """The number of threads that `environment` sets for torch; None: not set.

    >>> threads({"OMP_NUM_THREADS": "4,2"}), threads({"OMP_NUM_THREADS": "x"})
    (4, None)
    >>> threads({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "3"})
    3
    """
    for name in THREADS:
        first = environment.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return None


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Names of the variables that differ.

    >>> sorted(changed({"A": "1", "B": "2"}, {"B": "3", "C": "4"}))
    ['A', 'B', 'C']
    """
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def apply_threads(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Sets the number of threads of libraries loaded under `before` to what they would have read from `after`. Returns
    False if `after` sets none: torch's own choice is not known any more."""
    _set_blas_threads(after)
    return _set_threads(threads(before), threads(after))


def apply(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Applies to libraries loaded under `before` what is different in `after`. Returns the variables that came too
    late."""
    names = changed(before, after)
    late = {name for name in names if name.startswith(LOADED_ONCE) and name not in THREADS}
    if names & {*THREADS, OPENBLAS_THREADS} and not apply_threads(before, after):
        late |= names & {*THREADS}
    if any(name.startswith(("TORCH", "PYTORCH", "PT2_", "AOT_", "FAKE_", "PARTITIONER_")) for name in names):
        late |= _reread(names)
    return sorted(late)


def load_blas_single_threaded() -> None:
    """Call this before numpy is imported: OpenBLAS, which numpy's wheels contain, starts its threads when it is loaded,
    and a process with threads is not fork-safe. Each worker sets the number it would have had (`apply_threads`)."""
    os.environ.setdefault(OPENBLAS_THREADS, "1")


def _set_blas_threads(environment: Mapping[str, str]) -> None:
    """Gives each loaded OpenBLAS the threads that a fresh process with `environment` has."""
    value = environment.get(OPENBLAS_THREADS) or environment.get("OMP_NUM_THREADS") or ""
    count = int(value) if value.isdigit() else len(os.sched_getaffinity(0))
    for library in _loaded_libraries(lambda path: "openblas" in path):
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads"):
            function = getattr(library, name, None)
            if function is not None:
                function(ctypes.c_int(count))
                break


def _set_threads(known: int | None, wanted: int | None) -> bool:
    """Returns False if there is no number to set."""
    if known == wanted:
        return True
    if wanted is None:
        return False
    for function in _omp_functions():
        function(ctypes.c_int(wanted))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(wanted)  # for MKL and for future threads too
    return True


def _omp_functions() -> Iterable[Callable[[ctypes.c_int], object]]:
    """`omp_set_num_threads` of each loaded OpenMP library: wheels ship their own."""
    for library in _loaded_libraries(lambda path: os.path.basename(path).startswith(("libgomp", "libomp", "libiomp"))):
        with contextlib.suppress(AttributeError):
            yield library.omp_set_num_threads


def _loaded_libraries(wanted: Callable[[str], bool]) -> Iterable[ctypes.CDLL]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.rsplit(" ", 1)[-1] for line in maps if ".so" in line}
    for path in sorted(path for path in paths if wanted(path)):
        with contextlib.suppress(OSError):
            yield ctypes.CDLL(path)


def _reread(names: set[str]) -> set[str]:
    """Applies variables through torch's Python functions. Returns those that this torch cannot apply."""
    late = set()
    if DISTRIBUTED_DEBUG in names and not _succeeds(_set_debug_level):
        late.add(DISTRIBUTED_DEBUG)
    if names & {*LOGS} and not _succeeds(_set_logs):
        late |= names & {*LOGS}
    for name in CONFIGS:
        config = sys.modules.get(name)
        if config is not None:
            _succeeds(functools.partial(reread_config, config))
    return late


def _succeeds(action: Callable[[], object]) -> bool:
    """These functions of torch are internal and differ between releases: a failure must not end the worker."""
    try:
        action()
    except Exception:  # noqa: BLE001 - see above
        return False
    return True


def _set_debug_level() -> None:
    sys.modules["torch.distributed"].set_debug_level_from_env()


def _set_logs() -> None:
    sys.modules["torch._logging"].__dict__["_internal"]._init_logs()


def reread_config(config: Any) -> None:
    """Runs the source of one of torch's config modules again, in a separate module, and applies the defaults that
    differ."""
    name: str = config.__name__
    fresh: Any = types.ModuleType(name)
    fresh.__dict__.update(
        __file__=config.__file__,
        __package__=name.rpartition(".")[0],
        __spec__=config.__spec__,
        __loader__=config.__loader__,
    )
    parent, _, own_name = name.rpartition(".")
    sys.modules[name] = fresh
    try:
        exec(compile(Path(config.__file__).read_bytes(), config.__file__, "exec", dont_inherit=True), fresh.__dict__)  # noqa: S102 - torch's own
    finally:
        sys.modules[name] = config
        sys.modules[parent].__dict__[own_name] = config
    for key, entry in fresh._config.items():
        known = config._config.get(key)
        if known is None:
            continue
        known.env_value_default, known.env_value_force = entry.env_value_default, entry.env_value_force
        if known.default != entry.default:
            setattr(config, key, entry.default)


class FirstImport:
    """Calls `then` once, before the script's first import of one of `packages`.

    The packages are loaded, so that no finder is called; the import functions themselves are wrapped until then.
    """

    def __init__(self, packages: Collection[str], then: Callable[[], None]) -> None:
        self._packages = frozenset(packages)
        self._then = then
        self._pid = os.getpid()
        self._import = builtins.__import__
        self._import_module = importlib.import_module

    def watch(self) -> None:
        def watched_import(name: str, *given: Any, **named: Any) -> Any:
            if name.partition(".")[0] in self._packages:
                self._finish(watched_import, import_module)
            return self._import(name, *given, **named)

        def import_module(name: str, package: str | None = None) -> types.ModuleType:
            if name.partition(".")[0] in self._packages:
                self._finish(watched_import, import_module)
            return self._import_module(name, package)

        builtins.__import__ = watched_import
        importlib.import_module = import_module

    def _finish(self, ours: object, our_module: object) -> None:
        """Keeps wrappers that the script put around ours, which then only passes through."""
        if builtins.__import__ is ours:
            builtins.__import__ = self._import
        if importlib.import_module is our_module:
            importlib.import_module = self._import_module
        self._packages = frozenset()
        if os.getpid() == self._pid:
            self._then()


def users_of_torch() -> set[str]:
    """Loaded top-level packages that use torch: the script may import one of them and not torch itself.

    Touches every module. A worker that did so would copy thousands of pages that it shares with the zygote, which takes
    longer than the rest of its start.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return set()
    loaded = [(name, module) for name, module in sys.modules.items() if isinstance(module, types.ModuleType)]
    found = {name.partition(".")[0] for name, module in loaded if vars(module).get("torch") is torch}
    return {"torch", *found} - {"elasticjob_runtime", "__main__"}
