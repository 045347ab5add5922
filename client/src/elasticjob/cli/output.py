"""Standard output and error: tables for terminals and pipes, documents for programs, progress for people."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

from elasticjob.cli.options import Output
from elasticjob.names import GROUP, SINGULAR

NARROWEST = 20


def use_color(stream: TextIO) -> bool:
    """Whether a stream takes colors: https://no-color.org."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


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
    _write(sys.stderr, f"{text}\n")
    sys.stderr.flush()


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    if encoding.lower().replace("-", "") != "utf8":
        text = text.encode(encoding, "replace").decode(encoding)
    stream.write(text)


def show_objects(objects: list[Mapping[str, Any]], output: Output, *, single: bool) -> None:
    """As JSON, YAML or names. `single`: the object itself instead of a list."""
    if output is Output.NAME:
        say(f"{SINGULAR}.{GROUP}/{each['metadata']['name']}" for each in objects)
        return
    shown = [_without_managed_fields(each) for each in objects]
    document = shown[0] if single else {"apiVersion": "v1", "kind": "List", "items": shown}
    say(to_yaml(document).rstrip() if output is Output.YAML else to_json(document))


def to_yaml(document: Any) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def to_json(document: Any) -> str:
    import json

    return json.dumps(document, indent=2, ensure_ascii=False)


def _without_managed_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """kubectl leaves them out too."""
    metadata = {key: value for key, value in body.get("metadata", {}).items() if key != "managedFields"}
    return {**body, "metadata": metadata}


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Shows what a command waits for: a spinner on a terminal, otherwise a line for each change."""
    if not sys.stderr.isatty():
        last = ""

        def report(text: str) -> None:
            nonlocal last
            if text != last:
                note(f"{what}: {text}")
            last = text

        yield report
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, no_color=not use_color(sys.stderr), highlight=False)
    with console.status(escape(what)) as status:
        yield lambda text: status.update(escape(f"{what}: {text}"))
