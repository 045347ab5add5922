"""What libraries read from the environment when they are loaded, read again in a forked worker, whose libraries were
loaded by the zygote.

Twice: when the worker gets its environment (the launcher itself sets OMP_NUM_THREADS), and when the script imports
torch for the first time, since a script may set variables in its first lines. What a loaded library cannot be told any
more is named in the agent's log.
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

from elasticjob_runtime.workers.zygote import blas

THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""What torch takes its number of intra-op threads from; the first one counts. The number of inter-op threads comes from
no variable."""

CONFIGS = (
    "torch._dynamo.config",
    "torch._inductor.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
    "torch.compiler.config",
)
"""torch's modules of settings whose defaults come from the environment."""

LOADED_ONCE = (
    "KMP_",
    "GOMP_",
    "OMP_",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "PYTORCH_JIT",
    "OPENBLAS_CORETYPE",
)
"""Variables, or how their names begin, that a library reads while it is loaded and never again."""

DISTRIBUTED_DEBUG, LOGS = "TORCH_DISTRIBUTED_DEBUG", ("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT")


def threads(environment: Mapping[str, str]) -> int | None:
    """The number of threads that `environment` asks torch for; None: it asks for none.

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
    """Names of the variables that are not the same.

    >>> sorted(changed({"A": "1", "B": "2"}, {"B": "3", "C": "4"}))
    ['A', 'B', 'C']
    """
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def apply_threads(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Gives the loaded libraries the threads that they would have taken from `after`, where they were loaded under
    `before`. False: `after` asks for no number, and what torch would choose by itself is not known any more."""
    blas.restore_threads(after)
    return _set_threads(threads(before), threads(after))


def apply(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Tells the loaded libraries what is in `after` and was not in `before`, which they know. Returns the names that
    came too late."""
    names = changed(before, after)
    late = {name for name in names if name.startswith(LOADED_ONCE) and name not in THREADS}
    if names & {*THREADS, blas.VARIABLE} and not apply_threads(before, after):
        late |= names & {*THREADS}
    if any(name.startswith(("TORCH", "PYTORCH", "PT2_", "AOT_", "FAKE_", "PARTITIONER_")) for name in names):
        late |= _read_again(names)
    return sorted(late)


def _set_threads(known: int | None, wanted: int | None) -> bool:
    """False: there is no number to go back to."""
    if known == wanted:
        return True
    if wanted is None:
        return False
    for function in _omp_functions():
        function(ctypes.c_int(wanted))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(wanted)  # MKL's too, and those of threads that are still to come
    return True


def _omp_functions() -> Iterable[Callable[[ctypes.c_int], object]]:
    """`omp_set_num_threads` of every OpenMP that is loaded: wheels bring their own."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.rsplit(" ", 1)[-1] for line in maps if ".so" in line}
    for path in sorted(paths):
        if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp")):
            with contextlib.suppress(OSError, AttributeError):
                yield ctypes.CDLL(path).omp_set_num_threads


def _read_again(names: set[str]) -> set[str]:
    """What Python can tell torch afterwards. Returns the names that torch refused, or has no way to take."""
    late = set()
    if DISTRIBUTED_DEBUG in names and not _did(_set_debug_level):
        late.add(DISTRIBUTED_DEBUG)
    if names & {*LOGS} and not _did(_set_logs):
        late |= names & {*LOGS}
    for name in CONFIGS:
        config = sys.modules.get(name)
        if config is not None:
            _did(functools.partial(reread_config, config))
    return late


def _did(action: Callable[[], object]) -> bool:
    """torch's own corners differ from release to release: what cannot be had must not cost the worker."""
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
    """Runs the source of one of torch's config modules again, aside, and takes over every default that came out
    different."""
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
    """Calls `then`, once, before the script's first import of one of `packages`. All of them are loaded, so no finder
    would be asked: the functions that import are wrapped until then."""

    def __init__(self, packages: Collection[str], then: Callable[[], None]) -> None:
        self._packages = frozenset(packages)
        self._then = then
        self._pid = os.getpid()
        self._import = builtins.__import__
        self._import_module = importlib.import_module

    def watch(self) -> None:
        def watched_import(name: str, *given: Any, **named: Any) -> Any:
            if name.partition(".")[0] in self._packages:
                self._over(watched_import, import_module)
            return self._import(name, *given, **named)

        def import_module(name: str, package: str | None = None) -> types.ModuleType:
            if name.partition(".")[0] in self._packages:
                self._over(watched_import, import_module)
            return self._import_module(name, package)

        builtins.__import__ = watched_import
        importlib.import_module = import_module

    def _over(self, ours: object, our_module: object) -> None:
        """The script's own wrappers around ours stay, and ours then passes through."""
        if builtins.__import__ is ours:
            builtins.__import__ = self._import
        if importlib.import_module is our_module:
            importlib.import_module = self._import_module
        self._packages = frozenset()
        if os.getpid() == self._pid:
            self._then()


def users_of_torch() -> set[str]:
    """Top-level packages that are loaded and have torch: the script may import one of them without torch itself."""
    torch = sys.modules.get("torch")
    if torch is None:
        return set()
    loaded = list(sys.modules.items())
    found = (
        {name.partition(".")[0] for name, module in loaded if vars(module).get("torch") is torch} if torch else set()
    )
    return {"torch", *found} - {"elasticjob_runtime", "__main__"}
