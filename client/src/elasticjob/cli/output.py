"""Standard output and error: tables for terminals and pipes, documents for programs, progress for people."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

import typer

from elasticjob.cli.options import Output, given
from elasticjob.decisions.commands import addressed
from elasticjob.errors import ElasticJobError, Exit
from elasticjob.names import GROUP, SINGULAR
from elasticjob.views.text import HIDDEN, visible

NARROWEST = 20


def use_color(stream: TextIO) -> bool:
    """Whether a stream takes colors: https://no-color.org."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    forced = os.environ.get("FORCE_COLOR", "")
    return forced != "0" and (bool(forced) or stream.isatty())


def width() -> int | None:
    """Columns of the terminal; None where there is none."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def layout() -> dict[str, Any]:
    """`width` and `color` of standard output, as the views take them."""
    return {"width": width(), "color": use_color(sys.stdout)}


def say(lines: str | Iterable[str]) -> None:
    """Prints to standard output, also characters that its encoding lacks."""
    for line in [lines] if isinstance(lines, str) else lines:
        _write(sys.stdout, f"{line}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark for the person at the terminal, on standard error."""
    sys.stdout.flush()
    _write(sys.stderr, f"{addressed(text, given)}\n")
    sys.stderr.flush()


def _write(stream: TextIO, text: str) -> None:
    """The one way out: what the cluster says cannot change the terminal."""
    encoding = stream.encoding or "utf-8"
    stream.write(visible(text, colors=use_color(stream)).encode(encoding, "replace").decode(encoding))


def show_objects(objects: list[Mapping[str, Any]], output: str, *, single: bool) -> None:
    """As JSON, YAML, names or by a JSONPath. `single`: the object itself instead of a list."""
    if output == Output.NAME:
        say(f"{SINGULAR}.{GROUP}/{item['metadata']['name']}" for item in objects)
        return
    shown = [_without_managed_fields(item) for item in objects]
    document = shown[0] if single else {"apiVersion": "v1", "kind": "List", "items": shown}
    if output.startswith("jsonpath="):
        from elasticjob.views.jsonpath import jsonpath

        say(jsonpath(document, output.removeprefix("jsonpath=")))
        return
    say(to_yaml(document).rstrip() if output == Output.YAML else to_json(document))


def to_yaml(document: Any) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    shown = str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))
    return shown if not HIDDEN.search(shown) else str(yaml.dump(document, Dumper=dumper, sort_keys=False, width=120))


def to_json(document: Any) -> str:
    import json

    shown = json.dumps(document, indent=2, ensure_ascii=False)
    return HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)


def _without_managed_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """kubectl leaves them out too."""
    metadata = {key: value for key, value in body.get("metadata", {}).items() if key != "managedFields"}
    return {**body, "metadata": metadata}


class Errors:
    """Of several objects: each is said, none keeps the others from their turn, and the first is the exit code."""

    def __init__(self) -> None:
        self._code = Exit.OK

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, ElasticJobError):
            return False
        note(f"Error: {error}")
        self._code = self._code or error.code
        return True

    def exit(self) -> None:
        if self._code:
            raise typer.Exit(self._code)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Shows what a command waits for: a spinner on a terminal, otherwise what has changed, every few seconds."""
    if not sys.stderr.isatty():
        from elasticjob.sdk.watch import FewLines

        yield FewLines(lambda text: note(f"{what}: {text}"))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, no_color=not use_color(sys.stderr), highlight=False)
    with console.status(escape(what)) as status:
        yield lambda text: status.update(escape(visible(f"{what}: {text}")))
