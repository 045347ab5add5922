"""The parser of elasticrun: torchrun's command line, flag by flag, and elasticrun's own flags (own_flags.py).

Source: torch/distributed/run.py (`get_args_parser`) and argparse_util.py of torch 2.15. Every flag can also be set as
`PET_<FLAG>` in the environment. A test compares this parser with that of the installed torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from elasticjob_runtime.agent import termination
from elasticjob_runtime.cli.own_flags import OWN_FLAGS
from elasticjob_runtime.cli.usage import did_you_mean

DEFAULT_MASTER_ADDR = "127.0.0.1"


class _Parser(argparse.ArgumentParser):
    """Reports an error in one sentence, without the usage text, and leaves the script's arguments alone."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """argparse before Python 3.12 looks for abbreviated flags among the script's arguments too, and rejects those
        that could be several, such as `--run`."""
        arguments = list(sys.argv[1:] if args is None else args)
        script = self._script(arguments)
        known, unknown = super().parse_known_args(
            arguments[: script + 1] if script is not None else arguments, namespace
        )
        if script is not None:
            known.training_script_args = arguments[script + 1 :]
        return known, unknown

    def _script(self, arguments: Sequence[str]) -> int | None:
        """Index of the script. None: there is none, or a flag before it is wrong."""
        index = 0
        while index < len(arguments) and (word := arguments[index]) != "--":
            if not word.startswith("-") or word == "-":
                return index
            action = self._action(word)
            if action is None:
                return None
            attached = "=" in word if word.startswith("--") else len(word) > 2
            index += 1 if attached or action.nargs == 0 else 2
        return None

    def _action(self, word: str) -> argparse.Action | None:
        """The flag that a word sets, which may be abbreviated; None: none, or one of several."""
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        known = self._option_string_actions
        near = {
            id(known[option]): known[option] for option in known if word.startswith("--") and option.startswith(name)
        }
        return known.get(name) or (next(iter(near.values())) if len(near) == 1 else None)

    def error(self, message: str) -> NoReturn:
        sentence = f"{self.prog}: {message}{self._suggestions(message)} (see {self.prog} --help)"
        termination.write(sentence, os.environ)
        self.exit(2, sentence + "\n")

    def _suggestions(self, message: str) -> str:
        """Suggestions for unrecognized flags."""
        _, found, unknown = message.partition("unrecognized arguments: ")
        known = list(self._option_string_actions)
        near = [did_you_mean(word.partition("=")[0], known) for word in unknown.split()] if found else []
        return "".join(near)


class _Env(argparse.Action):
    """A flag whose default comes from `PET_<FLAG>`."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, default: Any = None, required: bool = False, **kwargs: Any
    ) -> None:
        default = os.environ.get(f"PET_{dest.upper()}", default)
        super().__init__(option_strings, dest, default=default, required=required and not default, **kwargs)

    def __call__(self, _parser: object, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        setattr(namespace, self.dest, values)


class _EnvFlag(argparse.Action):
    """A switch that `PET_<FLAG>=1` also turns on."""

    def __init__(self, option_strings: Sequence[str], dest: str, default: bool = False, **kwargs: Any) -> None:
        text = os.environ.get(f"PET_{dest.upper()}", "1" if default else "0")
        super().__init__(option_strings, dest, nargs=0, const=True, default=text not in ("", "0"), **kwargs)

    def __call__(
        self, _parser: object, namespace: argparse.Namespace, _values: Any, _option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, self.const)


def comma_separated(text: str) -> list[str]:
    """Splits `a,b`; a double comma stands for a literal comma."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser of `elasticrun`, which reads the `PET_*` variables at this point."""
    parser = _Parser(
        prog="elasticrun",
        description="Elastic launcher for PyTorch. Takes torchrun's flags. With --rdzv-backend=etcd-v3 or "
        "--standalone, worker processes restart in place after any change; with other backends, torchrun runs the job.",
    )
    _size_flags(parser)
    _rendezvous_flags(parser)
    _launch_flags(parser)
    _output_flags(parser)
    _static_flags(parser)
    _own_flags(parser)
    parser.add_argument(
        "training_script", type=str, help="Script, module (-m) or program (--no-python) that every worker process runs."
    )
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Arguments of the script.")
    return parser


def _value(parser: argparse.ArgumentParser, *names: str, about: str, default: Any = None, **settings: Any) -> None:
    """A flag with a value, whose default comes from `PET_<FLAG>`."""
    parser.add_argument(*_spellings(names), action=_Env, default=default, help=about, **settings)


def _switch(parser: argparse.ArgumentParser, *names: str, about: str) -> None:
    parser.add_argument(*_spellings(names), action=_EnvFlag, help=about)


def _spellings(names: Sequence[str]) -> list[str]:
    """As torchrun has them: `--max-restarts` and `--max_restarts`.

    >>> _spellings(["-r", "--log-dir"])
    ['-r', '--log-dir', '--log_dir']
    """
    return list(dict.fromkeys(spelt for name in names for spelt in (name, name[:2] + name[2:].replace("-", "_"))))


def _size_flags(parser: argparse.ArgumentParser) -> None:
    _value(parser, "--nnodes", default="1:1", about="Number of members: N, or MIN:MAX.")
    _value(
        parser, "--nproc-per-node", default="1",
        about="Worker processes per member: a number, auto, cpu, gpu or xpu.",
    )  # fmt: skip


def _rendezvous_flags(parser: argparse.ArgumentParser) -> None:
    _value(parser, "--rdzv-backend", default="static", about="etcd-v3, or one of torchrun's: c10d, etcd-v2, static.")
    _value(
        parser, "--rdzv-endpoint", default="",
        about="host:port of the rendezvous service; several etcd members separated by commas.",
    )  # fmt: skip
    _value(parser, "--rdzv-id", default="none", about="ID of the job, the same for all members.")
    _value(
        parser, "--rdzv-conf", default="",
        about="Settings of the rendezvous: key=value,key=value (see docs/reference/elasticrun.md).",
    )  # fmt: skip
    _switch(parser, "--standalone", about="Run a single member on this machine, without a rendezvous service.")


def _launch_flags(parser: argparse.ArgumentParser) -> None:
    _value(
        parser, "--max-restarts", type=int, default=0,
        about="Restarts of the worker group after failures before the job fails; membership changes do not count.",
    )  # fmt: skip
    _value(
        parser, "--monitor-interval", type=float, default=0.1,
        about="Accepted for compatibility and ignored: the kernel reports at once when a worker process exits.",
    )  # fmt: skip
    _value(
        parser, "--start-method", default="zygote", choices=["zygote", "spawn", "fork", "forkserver"],
        about="zygote: fork workers from a process that has already imported torch. All others: start a new "
            "interpreter for each worker.",
    )  # fmt: skip
    _value(parser, "--event-log-handler", default="null", about="Accepted for compatibility and ignored; see --events.")
    _value(parser, "--role", default="default", about="Name of the workers' role.")
    _switch(parser, "-m", "--module", about="Run a module, as `python -m` does.")
    _switch(parser, "--no-python", about="Run the script as a program, without Python.")
    _switch(parser, "--run-path", about="Accepted for compatibility: Python runs the script.")
    _value(
        parser, "--signals-to-handle", default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        about="Signals out of SIGTERM, SIGINT, SIGHUP and SIGQUIT that make this member leave; its processes get the "
            "signal. SIGUSR1 and SIGUSR2 are always forwarded to them.",
    )  # fmt: skip
    _value(
        parser, "--shutdown-timeout", type=int,
        about="Seconds that workers get to save, between SIGTERM and SIGKILL (default: 30).",
    )  # fmt: skip
    _switch(parser, "--virtual-local-rank", about="Each worker sees its GPU as device 0.")
    parser.add_argument(
        *_spellings(["--numa-binding"]), choices=["node", "socket", "exclusive", "core-complex"],
        help="Not supported; use torchrun.",
    )  # fmt: skip


def _output_flags(parser: argparse.ArgumentParser) -> None:
    _value(parser, "--log-dir", about="Log directory of worker processes.")
    _value(
        parser, "-r", "--redirects", default="0",
        about="Output to redirect to files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:1,1:3.",
    )  # fmt: skip
    _value(
        parser, "-t", "--tee", default="0",
        about="Output to write to both files and the console, in the same format.",
    )  # fmt: skip
    _value(
        parser, "--log-line-prefix-template", default="",
        about="Prefix of each teed line; ${role_name}, ${local_rank}, ${rank}, ${hostname} are replaced.",
    )  # fmt: skip
    _value(
        parser, "--local-ranks-filter", default="",
        about="Local ranks whose output is shown on the console, such as 0,1. Default: all.",
    )  # fmt: skip
    for stream in ("stdout", "stderr"):
        _value(
            parser, f"--duplicate-{stream}-filters", type=comma_separated, default=[],
            about=f"Copy lines of {stream} that contain one of these words to a separate file.",
        )  # fmt: skip
    parser.add_argument(*_spellings(["--logs-specs"]), help="Only `default` is supported.")


def _static_flags(parser: argparse.ArgumentParser) -> None:
    _value(parser, "--node-rank", type=int, default=0, about="For the static backend.")
    _value(parser, "--master-addr", default=DEFAULT_MASTER_ADDR, about="For the static backend.")
    _value(
        parser, "--master-port", type=int,
        about="MASTER_PORT of the first round; with etcd-v3, each round uses the next of four ports.",
    )  # fmt: skip
    _value(parser, "--local-addr", about="Address at which other members reach this one. Default: detected.")


def _own_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("elasticrun only")
    for flag in OWN_FLAGS:
        names = _spellings([flag.name])
        if flag.value:
            default = os.environ.get(flag.variable) or flag.default
            group.add_argument(
                *names, action=_Env, type=flag.convert, default=default, metavar=flag.value, help=flag.help
            )
        else:
            group.add_argument(*names, action=_EnvFlag, help=flag.help)


def without_own_flags(arguments: Sequence[str], script: int) -> list[str]:
    """Removes the flags that torchrun does not have from `arguments`, which our parser has accepted.

    `script`: index of the script in `arguments`. Everything after it belongs to the script.
    """
    result: list[str] = []
    own = {flag.name: flag.arguments for flag in OWN_FLAGS}
    rest = list(arguments[:script])
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        follows = 0 if equals else 1
        if (flag := _matching_flag(name, own)) is not None:
            del rest[: own[flag] * follows]
        elif _matching_flag(name, ["--start-method"]) and "zygote" in (value, *rest[:follows]):
            del rest[:follows]  # torchrun has no zygote; it is our default
        else:
            result.append(argument)
    return [*result, *arguments[script:]]


def _matching_flag(name: str, flags: Iterable[str]) -> str | None:
    """The flag of `flags` that argparse recognises in `name`, which may be an unambiguous abbreviation."""
    given = name.replace("_", "-")
    return next((flag for flag in flags if given.startswith("--") and len(given) > 2 and flag.startswith(given)), None)
