"""The code blocks that pages show can be used as written: languages, shell programs, and Python that compiles and
imports what exists.

tests/integration/test_docs.py continues where this ends: the real API server accepts the manifests, and the real
kubectl and helm know the commands' flags. Where none of this is possible, the page says why in a comment above the
block, `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from hack.checks import SOURCES
from hack.checks.pages import Code, Problem, blocks

MARK = re.compile(r"<!-- not run: (.+?) -->")

LANGUAGES = frozenset({"console", "dockerfile", "json", "promql", "python", "sh", "text", "yaml"})
"""`sh` is for commands only; a transcript with output is `console`, anything else `text`."""

PROGRAMS = frozenset(
    {
        "docker",
        "elasticjob",
        "elasticrun",
        "etcdctl",
        "git",
        "helm",
        "kubectl",
        "make",
        "pip",
        "python",
        "python3",
        ".venv/bin/python",
        "torchrun",
    }
)
"""Programs that blocks of commands may call. Add one together with a check of its flags, if it is ours."""

ELSEWHERE = frozenset(
    {"accelerate", "datasets", "lightning", "pyarrow", "torchdata", "torchvision", "transformers", "webdataset"}
)
"""Packages that examples may import and that development does not install."""


def marked(markdown: str, block: Code) -> bool:
    """Whether the page says that this block is not run, on the line above its fence."""
    lines = markdown.splitlines()
    above = [line for line in lines[max(block.line - 4, 0) : max(block.line - 2, 0)] if line.strip()]
    return bool(above and MARK.search(above[-1]))


def fenced(markdown: str) -> list[Code]:
    """The fenced blocks of a page that are not marked."""
    fences = {number for number, line in enumerate(markdown.splitlines(), 1) if re.match(r"\s*```", line)}
    return [block for block in blocks(markdown) if block.line - 1 in fences and not marked(markdown, block)]


def problems(page: str, markdown: str) -> list[Problem]:
    """Everything that cannot be used as the page shows it."""
    return [
        Problem(page, block.line, message)
        for block in fenced(markdown)
        for message in (
            *_language(block),
            *(_python(block.text) if block.language == "python" else ()),
            *(_programs(block.text) if block.language == "sh" else ()),
        )
    ]


def _language(block: Code) -> Iterator[str]:
    if block.language not in LANGUAGES:
        yield f"a code block is {block.language or 'of no language'}: use one of {', '.join(sorted(LANGUAGES))}"


def commands(script: str) -> list[list[str]]:
    """The simple commands of a shell script, as words, without comments, redirections and assignments of variables.

    Raises ValueError for a quote that is not closed.
    """
    found: list[list[str]] = []
    script = re.sub(r"(^|\s)#.*", r"\1", script)
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    skip = False
    for word in lexer:
        if set(word) <= set(";|&"):
            found.append(words)
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        elif words or not re.match(r"\w+=", word):
            words.append(word)
    return [item for item in [*found, words] if item]


def _programs(script: str) -> Iterator[str]:
    try:
        called = commands(script)
    except ValueError as error:
        yield f"the shell cannot read this: {error}"
        return
    for words in called:
        if words[0] not in PROGRAMS:
            yield f"{words[0]} is not a known program: write `text` for output, or say why the block is not run"


def _python(text: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield f"Python cannot read this: {error.msg} in line {error.lineno}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (message for alias in node.names for message in _missing(alias.name, ()))
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from _missing(node.module, [alias.name for alias in node.names])


def _missing(module: str, names: Collection[str]) -> Iterator[str]:
    top = module.partition(".")[0]
    if top in ELSEWHERE:
        return
    if top not in SOURCES:
        if importlib.util.find_spec(top) is None:
            yield f"no module {top} is installed"
        return
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ELSEWHERE:
            yield f"there is no module {module}"
            return
        missing = [name for name in names if name not in _defined(module)]
    else:
        missing = [name for name in names if not hasattr(imported, name)]
    yield from (f"{module} has no {name}" for name in missing)


def _defined(module: str) -> frozenset[str]:
    """The functions and classes of a module that cannot be imported here, and what it imports from others."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return frozenset(own | {name.asname or name.name for node in imports for name in node.names})
