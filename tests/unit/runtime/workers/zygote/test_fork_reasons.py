"""Which programs cannot be forked from a zygote."""

from __future__ import annotations

import pathlib
import py_compile
import sys
import zipapp

from elasticjob_runtime.workers.process import Command
from elasticjob_runtime.workers.zygote.launcher import no_fork_reason


def test_only_source_files_are_forked(tmp_path: pathlib.Path) -> None:
    source, archive, compiled = tmp_path / "__main__.py", tmp_path / "app.pyz", tmp_path / "app.pyc"
    source.write_text("print('here')")
    zipapp.create_archive(tmp_path, archive, filter=lambda path: path == pathlib.Path("__main__.py"))
    py_compile.compile(str(source), str(compiled))
    found = [
        no_fork_reason(Command(program=[sys.executable], arguments=[str(path)]))
        for path in (source, archive, compiled, tmp_path)
    ]
    assert found == [None, "the script is an archive", "the script is compiled", "the script is a directory"]
