"""`python -m hack.site FOLDER`: adds the built site to a folder with one site per version, for any web server.

The folder keeps the versions that are there. `FOLDER/versions.json` is what the site's selector of versions reads, in
the format of mike; `FOLDER/index.html` leads to the newest.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from hack.checks import ROOT

REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={newest}/index.html"><title>ElasticJob</title>\n'


def versions(folder: Path) -> list[str]:
    """The versions that the folder has, newest first."""
    found = [path.name for path in folder.iterdir() if re.fullmatch(r"\d+(\.\d+)*", path.name)]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def publish(site: Path, folder: Path, version: str) -> None:
    """Puts the built site into `folder` as `version`, which it replaces."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(site, folder / version)
    newest, *older = versions(folder)
    entries = [{"version": newest, "title": newest, "aliases": ["latest"]}]
    entries += [{"version": item, "title": item, "aliases": []} for item in older]
    (folder / "versions.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(REDIRECT.format(newest=newest), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.site", description="Adds the built site to a folder.")
    parser.add_argument("folder", type=Path, help="folder with one site per version")
    publish(ROOT / "site", parser.parse_args().folder, (ROOT / "VERSION").read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    main()
