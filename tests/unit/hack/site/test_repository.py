"""Links of the docs to other files of the repository lead to pages of the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.site import repository


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("docs/design/README.md", "design/README.md"),
        ("docs/design", "design/README.md"),
        ("CONTRIBUTING.md", "repository/CONTRIBUTING.md"),
        ("charts/elasticjob/values.yaml", "repository/charts/elasticjob/values.yaml.md"),
        ("examples/digits", "repository/examples/digits/about.md"),
    ],
)
def test_every_file_has_a_page(path: str, page: str) -> None:
    assert repository.page_of(path) == page
    if path.endswith(".md"):
        assert repository.path_of(page) == path


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("operations.md", "../SECURITY.md", "repository/SECURITY.md"),
        ("design/0001.md", "../operations.md#nodes", "../operations.md#nodes"),
        ("guides/spot.md", "../../examples/digits", "../repository/examples/digits/about.md"),
        ("repository/CONTRIBUTING.md", "docs/overview.md", "../overview.md"),
        ("repository/examples/digits/about.md", "train.py", "train.py.md"),
        ("overview.md", "#nodes", "#nodes"),
        ("overview.md", "https://example.com/a.md", "https://example.com/a.md"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: str, link: str, expected: str) -> None:
    assert repository.with_links(f"See [a]({link}).", page) == f"See [a]({expected})."


def test_pipes_in_the_code_of_tables_need_no_backslash() -> None:
    markdown = r"| `a \| b` | c \| d |" + "\n" + r"`a \| b`"
    assert repository.with_plain_pipes(markdown) == r"| `a | b` | c \| d |" + "\n" + r"`a \| b`"


def test_code_is_left_alone() -> None:
    markdown = "```text\n[a](../b.md)\n```\n[a](../b.md)\n"
    assert repository.with_links(markdown, "page.md") == "```text\n[a](../b.md)\n```\n[a](repository/b.md)\n"


def test_files_that_pages_link_to_become_pages(tmp_path: Path) -> None:
    texts = {
        "docs/index.md": "[chart](../charts/values.yaml), [rules](../CONTRIBUTING.md), [api](../api)",
        "CONTRIBUTING.md": "[docs](docs/index.md), [license](LICENSE.txt)",
        "CHANGELOG.md": "# Changelog",
        "SECURITY.md": "# Security",
        "LICENSE.txt": "text\n",
        "charts/values.yaml": "a: 1\n",
        "examples/digits/README.md": "# Digits",
        "api/job.py": "",
        "hack/tool.py": "",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    pages = repository.pages(tmp_path, frozenset(texts))
    assert set(pages) == {
        "repository/CHANGELOG.md",
        "repository/CONTRIBUTING.md",
        "repository/LICENSE.txt.md",
        "repository/SECURITY.md",
        "repository/api/about.md",
        "repository/charts/values.yaml.md",
        "repository/examples/digits/about.md",
    }
    assert pages["repository/charts/values.yaml.md"] == "# charts/values.yaml\n\n````yaml\na: 1\n````\n"
    assert "- `api/job.py`" in pages["repository/api/about.md"]
