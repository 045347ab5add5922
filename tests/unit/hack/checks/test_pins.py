from __future__ import annotations

import pytest

from hack.checks.pins import unpinned_actions

COMMIT = "0" * 40
PATH = ".github/workflows/ci.yaml"


@pytest.mark.parametrize(
    "line",
    [
        f"      - uses: actions/checkout@{COMMIT} # v5.0.0",
        f"        uses: owner/actions/scan@{COMMIT} # v7.4.0",
        "      - uses: ./.github/actions/own",
        "      - run: make check",
    ],
)
def test_an_action_of_a_commit_is_pinned(line: str) -> None:
    assert list(unpinned_actions(PATH, line)) == []


@pytest.mark.parametrize(
    "line",
    [
        "      - uses: actions/checkout@v5",
        "      - uses: actions/checkout@main # v5.0.0",
        f"      - uses: actions/checkout@{COMMIT}",
        f"      - uses: actions/checkout@{COMMIT} # v5",
        f"      - uses: actions/checkout@{COMMIT[1:]} # v5.0.0",
    ],
)
def test_an_action_of_a_tag_or_without_a_version_is_reported(line: str) -> None:
    (problem,) = unpinned_actions(PATH, line)
    assert "pin it by commit" in str(problem)


def test_only_workflows_are_read() -> None:
    assert list(unpinned_actions("docs/example.md", "uses: actions/checkout@v5")) == []
