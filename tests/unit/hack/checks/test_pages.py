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


def test_fenced_blocks_are_read_whole_and_indented_ones_line_by_line() -> None:
    assert blocks(PAGE) == [
        Code(3, "make check  # indented"),
        Code(4, "make test"),
        Code(7, "$ pip install \\\n    this", "console"),
        Code(12, "kind: `none`", "yaml"),
    ]


def test_an_indented_continuation_of_a_paragraph_is_not_code() -> None:
    assert blocks("1. a step\n    and more of it\n") == []


def test_continued_commands_are_joined_and_prompts_dropped() -> None:
    assert Code(7, "pip install this") in commands(PAGE)


def test_code_spans_inside_blocks_are_ignored() -> None:
    assert spans(PAGE) == [Code(1, "a span")]
