"""docs/reference/cli.md: the client's commands and flags, from the command line itself."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from elasticjob import errors
from elasticjob.cli.app import app

COMMON = ("namespace", "context", "kubeconfig", "as_user", "as_group", "as_uid", "local")
"""Parameters that most commands have."""

INTRODUCTION = """\
# elasticjob

The client's commands. `kubectl elasticjob` is the same program, and `elasticjob COMMAND --help` shows the same text.
[The command line](../guides/command-line.md) shows how to use them, and the [Python client](python.md#client) has the same functions.

All commands{but} have these flags:

"""

EXITS = """\
## Exit codes

| code | meaning |
|---|---|
| 0 | Success. |
"""
OTHER_EXITS = {
    errors.Exit.ERROR: "Another error; its message says what to do.",
    errors.Exit.INCOMPLETE: "`convert --strict`: something is missing or was not carried over.",
    errors.Exit.INTERRUPTED: "Interrupted by Ctrl-C.",
}
"""Exit codes that no class of errors has."""


def page() -> str:
    """The page. A pure function of the command line."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009 a group, which mypy cannot see
    common = {
        parameter.name: parameter
        for command in commands.values()
        for parameter in command.params
        if parameter.name in COMMON
    }
    without = [f"`{name}`" for name, item in commands.items() if COMMON[0] not in {one.name for one in item.params}]
    but = f" but {' and '.join(without)}" if without else ""
    parts = [INTRODUCTION.format(but=but) + _table(common[name] for name in COMMON)]
    parts += [_section(name, command) for name, command in commands.items() if not command.hidden]
    return "\n".join([*parts, EXITS + "".join(_exits())])


def _section(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and param.name not in COMMON]
    words = [_usage(argument) for argument in arguments]
    flags = ["[FLAGS]"] if options else []
    at = next((index for index, word in enumerate(words) if "--" in word), len(words))
    usage = " ".join(["elasticjob", name, *words[:at], *flags, *words[at:]])
    parts = [f"## elasticjob {name}", "", f"`{usage}`", "", inspect.cleandoc(command.help or ""), ""]
    visible = [option for option in options if not option.hidden]
    return "\n".join(parts) + (f"\n{_table(visible)}" if visible else "")


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name += " ..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _table(options: Iterable[Any]) -> str:
    rows = [f"| {_flags(option)} | {_meaning(option)} |" for option in options]
    return "\n".join(["| flag | meaning |", "|---|---|", *rows]) + "\n"


def _flags(option: Any) -> str:
    flags = [*sorted(option.opts, key=lambda flag: flag.startswith("--")), *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar or _choices(option)}"
    return ", ".join(f"`{flag}`" for flag in [*flags[:-1], flags[-1] + value]).replace("|", "\\|")


def _choices(option: Any) -> str:
    annotation = option.type_descriptor.annotation
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)]
    choices = [str(item.value) for kind in enums for item in kind]
    return "/".join(choices) or "VALUE"


def _meaning(option: Any) -> str:
    text = str(option.help or "").replace("|", "\\|")
    default = option.default.value if isinstance(option.default, enum.Enum) else option.default
    shown = default not in (None, "", False, True, (), []) and not callable(default) and "Default:" not in text
    return f"{text} Default: `{default}`." if shown else text


def _exits() -> Iterator[str]:
    """The meaning of an exit code is that of the errors that have it."""
    meanings = {int(code): [text] for code, text in OTHER_EXITS.items()}
    for var in vars(errors).values():
        if isinstance(var, type) and issubclass(var, errors.ElasticJobError) and var.code != errors.Exit.ERROR:
            meanings.setdefault(var.code, []).append(" ".join((inspect.getdoc(var) or "").split()))
    for code in errors.Exit:
        if code is not errors.Exit.OK:
            yield f"| {code.value} | {' '.join(meanings[code])} |\n"
