"""The commands, and what becomes of errors: a sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

import typer

from elasticjob.cli import changing, convert, doctor, init, logs, plot, reading, stacks, submit, watch
from elasticjob.cli.options import chosen, given, with_global_flags
from elasticjob.decisions.foreign_flags import meant
from elasticjob.errors import ElasticJobError, Exit, UsageError

COMMANDS: dict[str, Callable[..., None]] = {
    "submit": submit.submit,
    "list": reading.list_jobs,
    "get": reading.get,
    "describe": reading.describe,
    "logs": logs.logs,
    "stacks": stacks.stacks,
    "watch": watch.watch,
    "scale": changing.scale,
    "suspend": changing.suspend,
    "resume": changing.resume,
    "wait": changing.wait,
    "delete": changing.delete,
    "plot": plot.plot,
    "doctor": doctor.doctor,
    "init": init.init,
    "convert": convert.convert,
}


def app_of(called: Collection[str] = tuple(COMMANDS)) -> typer.Typer:
    """The command line. Only the commands that are `called` have their flags, which take long to read."""
    app = typer.Typer(
        name="elasticjob",
        help="Submit and look after ElasticJobs: elastic, fault-tolerant PyTorch training on Kubernetes.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(with_global_flags(root))
    for name, command in COMMANDS.items():
        kind = submit.Submit if name == "submit" else None
        if name not in called:
            app.command(name, help=command.__doc__)(_not_called)
        else:
            app.command(name, cls=kind)(command if name in ("init", "convert") else with_global_flags(command))
    return app


def __getattr__(name: str) -> Any:
    """`app`, with all commands, is made when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return app_of()


def _not_called() -> None:
    """In place of a command whose name alone is needed."""


def _version(wanted: bool) -> None:
    if wanted:
        from elasticjob.version import version  # slow to find out

        typer.echo(f"elasticjob {version()}")
        raise typer.Exit


def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


def run(arguments: Sequence[str], program: str = "elasticjob") -> int:
    """Returns the exit code."""
    given.clear()
    chosen.clear()
    try:
        if program != "elasticjob":
            _check_completion(arguments)
        called = COMMANDS if "_ELASTICJOB_COMPLETE" in os.environ else arguments
        code = app_of(called)(list(arguments), prog_name=program, standalone_mode=False)
    except ElasticJobError as error:
        return _fail(str(error), error.code)
    except typer.TyperException as error:
        return _usage_error(error, program)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 so that Python does not flush the pipe at exit
        return Exit.OK
    return code if isinstance(code, int) else Exit.OK


def _check_completion(arguments: Sequence[str]) -> None:
    """Of a plug-in, a shell completes the words by asking kubectl. Raises UsageError."""
    for argument in arguments[: arguments.index("--") if "--" in arguments else None]:
        if argument in ("--show-completion", "--install-completion"):
            raise UsageError(
                f"kubectl elasticjob has no {argument}: it is completed where kubectl is.",
                "See kubectl completion --help, or complete the program itself: elasticjob --install-completion",
            )


def _fail(message: str, code: int) -> int:
    from elasticjob.cli.output import note

    note(f"Error: {message}")
    return code


def _usage_error(error: typer.TyperException, program: str) -> int:
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else program
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)  # noqa: T201 as above
        return Exit.USAGE
    option = getattr(error, "option_name", "")
    possible = getattr(error, "possibilities", None)
    if option and possible is not None:
        hint = meant(option, possible)
        message = f"{where} has no flag {option}."
    else:
        hint, message = "", error.format_message()
    return _fail("\n".join(filter(None, (message, hint, f"All flags: {where} --help"))), Exit.USAGE)
