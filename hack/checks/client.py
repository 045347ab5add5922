"""Commands of the client in the docs: `elasticjob COMMAND` and its flags exist as written."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

import typer
from elasticjob.cli.app import app

from hack.checks.examples import commands
from hack.checks.pages import Problem
from hack.checks.pages import commands as code_of

PROGRAMS = (("elasticjob",), ("kubectl", "elasticjob"))
EVERYWHERE = frozenset({"-h", "--help"})
GLOBAL = frozenset({"--version", "--install-completion", "--show-completion", *EVERYWHERE})


@functools.cache
def known() -> Mapping[str, frozenset[str]]:
    """Command -> its flags."""
    group = typer.main.get_command(app)
    return {
        name: frozenset(flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts))
        for name, command in getattr(group, "commands").items()  # noqa: B009 mypy does not know that it is a group
    }


def _arguments(text: str) -> Iterator[list[str]]:
    """The arguments of each call of the client in a line of code."""
    try:
        called = commands(text)
    except ValueError:  # prose in a code span
        return
    for words in called:
        for program in PROGRAMS:
            if tuple(words[: len(program)]) == program:
                yield words[len(program) :]


def wrong(arguments: list[str]) -> Iterator[str]:
    """What the client does not know."""
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not given:
        return
    command, *rest = given
    if command.startswith("-"):
        flags, name = GLOBAL, "elasticjob"
    elif command in known():
        flags, name = known()[command] | EVERYWHERE, f"elasticjob {command}"
    else:
        yield f"elasticjob has no command {command}"
        return
    for word in rest if name != "elasticjob" else given:
        flag = word.partition("=")[0]
        if re.match(r"--?[A-Za-z]", flag) and flag not in flags:
            yield f"{name} has no flag {flag}"


def wrong_commands(page: str, markdown: str) -> list[Problem]:
    """Commands and flags that the client does not have."""
    return [
        Problem(page, code.line, message)
        for code in code_of(markdown)
        if re.match(r"(kubectl )?elasticjob [a-z-]", code.text)
        for arguments in _arguments(code.text)
        for message in wrong(arguments)
    ]
