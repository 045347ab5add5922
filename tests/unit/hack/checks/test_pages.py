"""The checks read code blocks, code spans and commands as a reader of the page sees them."""

from __future__ import annotations

from hack.checks.pages import Code, blocks, commands, spans

PAGE = """\
Text with `a span`.

    make check  # indented
    make test

```console
$ pip install \\
    this
```

```yaml
kind: `none`
```
"""


def test_fenced_blocks_are_whole_and_indented_ones_come_line_by_line() -> None:
    assert blocks(PAGE) == [
        Code(3, "make check  # indented"),
        Code(4, "make test"),
        Code(7, "$ pip install \\\n    this", "console"),
        Code(12, "kind: `none`", "yaml"),
    ]


def test_a_paragraph_that_goes_on_indented_is_not_code() -> None:
    assert blocks("1. a step\n    and more of it\n") == []


def test_continued_commands_are_joined_and_prompts_dropped() -> None:
    assert Code(7, "pip install this") in commands(PAGE)


def test_spans_inside_blocks_are_left_alone() -> None:
    assert spans(PAGE) == [Code(1, "a span")]
