"""Words that the project has replaced by common terms, and where they may still occur."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache

from hack.checks.pages import Problem

GIVEN_UP = {
    "alone grace": "sole member grace",
    "arrival": "join result, or arrive",
    "ask server": "dry-run create",
    "can be had": "is available",
    "chronicle": "recorder",
    "deed": "action",
    "desk": "store executor",
    "donor": "source",
    "doomed": "to delete",
    "founder": "first member",
    "give way": "yield",
    "hearsay": "peer plan",
    "hub": "shared watch",
    "keeper": "lease, cache, the agent's memory",
    "last words": "leave it out, or last line",
    "may be away": "may be down",
    "misfit": "incompatible",
    "newcomer": "joiner",
    "nobody": "no member, no user ...",
    "nonsense": "invalid, unknown ...",
    "nudge": "reconnect",
    "outlet": "async writer",
    "outline": "structure",
    "pacing": "status throttle",
    "parked": "preforked",
    "rehearse": "trial import",
    "somebody": "another user, another member ...",
    "sort out": "classify",
    "stories": "events",
    "takes along": "kills too",
    "teller": "event recorder",
    "torn": "incomplete",
    "unfit": "not fork-safe",
    "verdict": "pod status, decision ...",
    "warden": "reaper",
    "witness": "outside host",
}
"""Word -> what to write instead. Matches prose and parts of names, also in the plural."""

EPOCH = "epoch"
EPOCHS_OF_DATA = {
    "Dockerfile": "SOURCE_DATE_EPOCH of reproducible builds",
    "CONTRIBUTING.md": "says what an epoch is, and what it is not",
    "docs/bench/chaos.md": "the ledger proves that no sample of an epoch is lost",
    "docs/reference/glossary.md": "says what an epoch is, and what it is not",
    "docs/explanation/in-place.md": "epochs of the training data",
    "docs/guides/frameworks.md": "epochs of the training data",
    "docs/guides/sharded-models.md": "epochs of the training data",
    "docs/guides/streams.md": "epochs of the training data",
    "docs/tutorials/adapt-your-script.md": "epochs of the training data",
    "docs/tutorials/four-lines.md": "epochs of the training data",
    "docs/promises.md": "epochs of the training data",
    "client/src/elasticjob/starter/*": "epochs of the training data",
    "docs/design/0022-in-place.md": "epochs of the training data",
    "docs/design/0025-frameworks.md": "epochs of the training data",
    "docs/design/0031-replicas.md": "epochs of the training data",
    "examples/*": "epochs of the training data",
    "tests/e2e/test_with_kueue.py": "arguments of an example",
    "tests/integration/runtime_session/*": "epochs of the training data",
    "tests/unit/runtime/training/session/*": "epochs of the training data",
    "tests/integration/runtime/test_framework_callbacks.py": "arguments of Lightning",
    "tests/integration/runtime/test_lightning_continues.py": "epochs of the training data",
    "trainer-runtime/src/elasticjob_runtime/training/integrations/*": "epochs of the training data",
    "trainer-runtime/src/elasticjob_runtime/training/session/*": "epochs of the training data",
    "hack/chaos/*": "the ledger proves that no sample of an epoch is lost",
    "hack/checks/*": "this check",
    "benchmarks/recovery/*": "reads the ledger of a training",
    "hack/quickstart.py": "settings of the training script",
    "hack/images/*": "SOURCE_DATE_EPOCH of reproducible builds",
    "hack/release/*": "SOURCE_DATE_EPOCH of reproducible builds",
    "tests/e2e/test_examples.py": "arguments of the examples",
    "tests/e2e/test_replicas.py": "arguments of the examples",
    "tests/integration/test_examples.py": "arguments of an example",
    "tests/integration/test_digits_example.py": "reads the example's output",
    "tests/integration/client/test_files.py": "reads the starter's output",
    "tests/integration/test_api_templates.py": "an example's argument",
    "tests/unit/hack/*": "tests of the tools above",
    "tests/unit/runtime/agent/test_trainer_status.py": "a metric of Hugging Face's Trainer",
    "tests/unit/runtime/data/*": "the sampler's epochs",
    "tests/unit/runtime/training/checkpoint/*": "a checkpoint's content",
    "trainer-runtime/src/elasticjob_runtime/data/*": "the sampler's epochs",
}
"""Where *epoch* means a pass over the training data (or a date), and why. A rendezvous has rounds."""

ALLOWED = {
    "hack/checks/*": "the list itself",
    "constraints.txt": "names of other people's packages",
    "Dockerfile": "names of other people's packages",
    "examples/finetune-hf/train.py": "the Hugging Face hub",
}
"""Where any word may occur, and why."""


@cache
def pattern(word: str) -> re.Pattern[str]:
    """Matches the word in prose, in snake_case and in CamelCase, with a plural s.

    >>> bool(pattern("sort out").search("sort_out(x)")), bool(pattern("mirror").search("StoreMirror"))
    (True, True)
    >>> bool(pattern("hub").search("github"))
    False
    """
    small = r"[ _]".join(re.escape(part) for part in word.split())
    camel = "".join(part.capitalize() for part in word.split())
    return re.compile(rf"(?<![A-Za-z])(?i:{small})s?(?![a-z])|{camel}s?(?![a-z])")


def _allowed(path: str, where: Iterable[str]) -> bool:
    return any(fnmatch(path, glob) for glob in where)


def problems(path: str, text: str) -> list[Problem]:
    """Every given-up word in one file."""
    words = {} if _allowed(path, ALLOWED) else dict(GIVEN_UP)
    if not _allowed(path, EPOCHS_OF_DATA):
        words[EPOCH] = "round, where a rendezvous is meant; list the file in EPOCHS_OF_DATA where data is"
    return [
        Problem(path, number, f"{match[0]!r}: write {instead}")
        for word, instead in words.items()
        if word.split()[0].lower() in text.lower()
        for number, line in enumerate(text.splitlines(), 1)
        for match in pattern(word).finditer(line)
    ]
