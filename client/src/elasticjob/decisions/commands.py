"""Commands that messages suggest: they reach the cluster that the message is about. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

Flags = Sequence[tuple[str, ...]]
"""Each with its value, as the user gave them: --context, --kubeconfig, -n."""
_OURS = re.compile(
    r"\belasticjob (?:delete|describe|doctor|get|list|logs|plot|resume|scale|submit|suspend|wait|watch)\b.*"
)
_KUBECTL = re.compile(r"\bkubectl (?!elasticjob\b)[a-z]+ .*")


def addressed(text: str, flags: Flags) -> str:
    """The text with the flags in each command that lacks them.

    >>> addressed("Delete it: elasticjob delete bert", [("-n", "ml"), ("--context", "prod")])
    'Delete it: elasticjob delete -n ml --context prod bert'
    """
    given = [flag for flag in flags if all(flag)]
    if not given:
        return text
    return "\n".join(_addressed(line, given) for line in text.split("\n"))


def _addressed(line: str, flags: Flags) -> str:
    if "administrator" in line:  # whose kubeconfig is another
        return line
    anywhere = [flag for flag in flags if flag[0] not in ("-n", "--local")]
    line = _OURS.sub(lambda found: _with_flags(found[0], 2, flags), line)
    return _KUBECTL.sub(lambda found: _with_flags(found[0], 1, anywhere), line)


def _with_flags(command: str, words: int, flags: Flags) -> str:
    """The flags after the first words."""
    start = command.split(" ", words)
    own = command.split()
    placed = any(word in ("-A", "-n") or word.startswith("--namespace") for word in own)
    added = [shlex.join(flag) for flag in flags if flag[0] not in own and not (flag[0] == "-n" and placed)]
    return " ".join([*start[:words], *added, *start[words:]])
