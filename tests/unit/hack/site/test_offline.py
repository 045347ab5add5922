"""The site loads nothing from other hosts."""

from __future__ import annotations

import pytest

from hack.site.offline import from_other_hosts


@pytest.mark.parametrize(
    "html",
    [
        '<script async src="https://cdn.example/mermaid.js"></script>',
        "<script src=//cdn.example/a.js>",
        '<link rel="stylesheet" href="https://fonts.example/css?family=Roboto">',
        '<p><img alt="badge" src="https://badges.example/build.svg">',
    ],
)
def test_what_another_host_would_have_to_serve_is_found(html: str) -> None:
    assert len(from_other_hosts(html)) == 1


@pytest.mark.parametrize(
    "html",
    [
        '<script src="assets/bundle.js"></script><img src="../img/parts.svg">',
        '<a href="https://kueue.sigs.k8s.io">Kueue</a>',
        '<link rel="canonical" href="https://docs.example/">',
        "<code>&lt;script src=https://example.com&gt;</code>",
    ],
)
def test_links_and_own_files_are_no_problem(html: str) -> None:
    assert from_other_hosts(html) == []
