"""`make docs` fails for whatever would be broken on the site."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[4]


def build(folder: Path, pages: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Builds a site of these pages, of which only index.md is in the navigation, with the command of `make docs`."""
    for name, text in pages.items():
        (folder / "docs").mkdir(exist_ok=True)
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    config = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(folder / "docs"),
        "site_dir": str(folder / "site"),
        "hooks": [str(ROOT / "hack/site/hooks.py")],
        "nav": ["index.md"],
    }
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "VERSION").write_text("0.1.0\n", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^docs:.*\n.* -m mkdocs (.*)$", makefile, re.MULTILINE)
    command = [sys.executable, "-m", "mkdocs", *shlex.split(recipe), "--config-file", str(folder / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_sound_page_is_built(tmp_path: Path) -> None:
    done = build(tmp_path, {"index.md": "# Home\n\n[Below](#more)\n\n## More\n"})
    assert (done.returncode, (tmp_path / "site" / "index.html").exists()) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("pages", "complaint"),
    [
        ({"index.md": "# Home\n\n[x](missing.md)\n"}, "missing.md"),
        ({"index.md": "# Home\n\n[x](#nowhere)\n"}, "'#nowhere', but there is no such anchor"),
        ({"index.md": "# Home\n", "lost.md": "# Lost\n"}, "lost.md"),
        ({"index.md": "# Home\n\n![x](https://badges.example/a.svg)\n"}, "from another host"),
        ({"index.md": "# Home\n\n::: elasticjob_runtime.nothing\n"}, "elasticjob_runtime.nothing"),
    ],
)
def test_what_would_be_broken_fails_the_build(tmp_path: Path, pages: dict[str, str], complaint: str) -> None:
    done = build(tmp_path, pages)
    assert done.returncode != 0
    assert complaint in done.stderr
