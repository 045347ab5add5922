"""`kubectl_complete-elasticjob`: what kubectl runs to complete the words after `kubectl elasticjob`.

kubectl expects what its own commands print: a candidate on each line, then a directive
(https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/#shell-completion-for-plugins). The candidates are
those that the shell's completion of `elasticjob` has.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence

NO_FILES = ":4"
"""Directive: do not add names of files."""


def candidates(words: Sequence[str]) -> list[str]:
    """`words`: those after `kubectl elasticjob`; the last is incomplete."""
    from elasticjob.cli.app import app

    os.environ["_ELASTICJOB_COMPLETE"] = "complete_bash"
    os.environ["COMP_WORDS"] = shlex.join(["elasticjob", *words[:-1]]) + (
        f" {words[-1]}" if words and words[-1] else ""
    )
    os.environ["COMP_CWORD"] = str(max(1, len(words)))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app([], prog_name="elasticjob")
    return printed.getvalue().split()


def main() -> None:
    print("\n".join([*candidates(sys.argv[1:] or [""]), NO_FILES]))  # noqa: T201 its output
