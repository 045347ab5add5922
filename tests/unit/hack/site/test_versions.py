"""A folder keeps the sites of earlier versions, and leads to the newest."""

from __future__ import annotations

import json
from pathlib import Path

from hack.site.__main__ import publish


def test_each_version_has_a_site_and_readers_land_on_the_newest(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "docs"
    site.mkdir()
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        (site / "index.html").write_text(version, encoding="utf-8")
        publish(site, folder, version)
    listed = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    assert [(each["version"], each["aliases"]) for each in listed] == [
        ("0.10.0", ["latest"]),
        ("0.9.0", []),
        ("0.2.0", []),
    ]
    assert "url=0.10.0/index.html" in (folder / "index.html").read_text(encoding="utf-8")
    assert (folder / "0.9.0" / "index.html").read_text(encoding="utf-8") == "0.9.0"


def test_publishing_a_version_again_replaces_it(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "docs"
    site.mkdir()
    (site / "old.html").touch()
    publish(site, folder, "0.1.0")
    (site / "old.html").rename(site / "new.html")
    publish(site, folder, "0.1.0")
    assert [path.name for path in (folder / "0.1.0").iterdir()] == ["new.html"]
    assert len(json.loads((folder / "versions.json").read_text(encoding="utf-8"))) == 1
