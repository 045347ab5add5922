"""The version of a release, and the changelog's section for it."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest

from hack.release import version

TODAY = datetime.date(2030, 1, 2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the files that name the version."""
    for name in (version.FILE, version.CHANGELOG, *version.PLACES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(version.ROOT / name, tmp_path / name)
    return tmp_path


def test_setting_a_version_changes_every_file(root: Path) -> None:
    version.write("12.3.4rc1", TODAY, root)
    version.check(root)
    assert version.read(root) == "12.3.4rc1"
    assert (root / "operator/pyproject.toml").read_text().count("12.3.4rc1") == 3, (
        "its own, and those of API and runtime"
    )
    assert (root / "charts/elasticjob/Chart.yaml").read_text().count("12.3.4rc1") == 2


@pytest.mark.parametrize("name", version.PLACES)
def test_a_file_with_another_version_is_named(root: Path, name: str) -> None:
    path = root / name
    path.write_text(path.read_text().replace(version.read(root), "0.0.1", 1))
    with pytest.raises(version.VersionError, match=rf"{name} names 0\.0\.1"):
        version.check(root)


def test_setting_a_version_starts_its_section_of_the_changelog(root: Path) -> None:
    changelog = root / version.CHANGELOG
    changelog.write_text("# Changelog\n\n## Unreleased\n\n### Added\n\n- A thing.\n\n## 0.0.1 (2029-01-01)\n\n- Old.\n")
    version.write("12.3.4", TODAY, root)
    assert "## Unreleased\n\n## 12.3.4 (2030-01-02)\n\n### Added" in changelog.read_text()
    assert version.notes(root) == "### Added\n\n- A thing."
