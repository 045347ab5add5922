"""The command of a training container: torchrun and its relatives become elasticrun, without the flags that the
operator sets. Pure functions over its words.

    the container runs                     it becomes
    torchrun FLAGS train.py                elasticrun FLAGS train.py
    python -m torch.distributed.run ...    the same; a Python named by its path stays: that python -m elasticjob_runtime
    python train.py                        itself: the operator starts it under elasticrun
    sh -c "..."                            itself, with a warning
    accelerate launch, deepspeed ...       itself, with a warning
"""

from __future__ import annotations

import dataclasses
import enum
import re
import shlex
from collections.abc import Sequence

from elasticjob.convert.flags import LAUNCHER_MODULES, LAUNCHERS, LEGACY_LAUNCHERS, SWITCHES, named
from elasticjob.convert.paths import Path
from elasticjob.convert.table import Field, Note, Outcome

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
OTHER_LAUNCHERS = frozenset({"accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "ray", "tune"})
_VARIABLE = re.compile(r"\$[({]?\w")
_SHELL_SYNTAX = re.compile(r"[;&|<>$`(){}*?\n\\]")


class Style(enum.Enum):
    """What kind of command it is."""

    LAUNCHER = "torchrun or the like"
    SCRIPT = "python train.py"
    SHELL = "a shell command"
    PROGRAM = "any other program"
    NONE = "the image's entry point"


@dataclasses.dataclass(frozen=True)
class Word:
    """A word of the command, or the literal value of a flag in it, and where it is in the input."""

    text: str
    path: Path


@dataclasses.dataclass(frozen=True)
class Launch:
    """What a container runs in an ElasticJob."""

    style: Style
    command: tuple[Word, ...]
    args: tuple[Word, ...] = ()
    settings: dict[str, Word] = dataclasses.field(default_factory=dict)
    """Flags that become fields: name -> value."""
    notes: tuple[Note, ...] = ()


def launch(command: Sequence[Word], args: Sequence[Word], *, implied_launcher: bool, at: Path) -> Launch:
    """Converts a container's command. `implied_launcher`: the image's entry point is torchelastic's launcher, and
    `args` are its flags. `at`: the container's path."""
    if implied_launcher and not command and args:
        entry_point = Word("torchrun", (*at, "command"))
        note = Note(
            entry_point.path,
            Outcome.CHANGED,
            "the image's entry point was torchelastic's launcher",
            "elasticrun replaces it: check that the image has Python 3.10 or newer, and torch",
            "spec.workers.template.spec.containers[].command",
        )
        found = _launcher([entry_point, *args], 1)
        return dataclasses.replace(found, notes=(note, *found.notes[1:]))
    as_it_is = Launch(Style.PROGRAM, tuple(command), tuple(args))
    if not command:
        return dataclasses.replace(as_it_is, style=Style.NONE, notes=(_no_command(at),))
    words = [*command, *args]
    program = _name(words[0].text)
    if program == "elasticrun":
        return dataclasses.replace(as_it_is, style=Style.LAUNCHER)
    if taken := _launcher_words(words):
        return _launcher(words, taken)
    if program in SHELLS and (line := _shell_line(words)):
        return dataclasses.replace(as_it_is, style=Style.SHELL, notes=(_stays(line, line.text, _simple(line.text)),))
    if _is_python(program) and len(words) > 1 and _name(words[1].text) not in (*LAUNCHERS, *OTHER_LAUNCHERS):
        return dataclasses.replace(as_it_is, style=Style.SCRIPT)
    return dataclasses.replace(as_it_is, notes=(_stays(words[0], " ".join(word.text for word in words)),))


def _no_command(at: Path) -> Note:
    return Note(
        (*at, "command"),
        Outcome.MISSING,
        "the image's entry point is not visible, and the operator needs a command that it can run under elasticrun",
        "write what the entry point runs, such as command: [python, train.py], or set spec.workers.runtime.inject: "
        "None if the image contains the runtime and starts elasticrun",
    )


def _name(program: str) -> str:
    return program.rpartition("/")[2]


def _is_python(name: str) -> bool:
    return re.fullmatch(r"python[\d.]*t?", name) is not None


def _launcher_words(words: Sequence[Word]) -> int:
    """How many words name the launcher; 0: it is none."""
    name = _name(words[0].text)
    if name in LAUNCHERS:
        return 1
    if not _is_python(name):
        return 0
    index = 1
    while index < len(words) - 1 and words[index].text.startswith("-"):
        if words[index].text == "-m":
            return index + 2 if words[index + 1].text in LAUNCHER_MODULES else 0
        index += 2 if words[index].text in ("-X", "-W") else 1
    return 0


def _launcher(words: Sequence[Word], taken: int) -> Launch:
    """`taken`: how many words name the launcher."""
    first, last = words[0], words[taken - 1]
    flags = LAUNCHERS.get(_name(last.text)) or LAUNCHER_MODULES[last.text]
    kept: list[Word] = []
    notes = [Note(first.path, Outcome.CARRIED, "elasticrun takes its place")]
    notes += [_python_option(word) for word in words[1:taken] if word.text.startswith("-") and word.text != "-m"]
    settings: dict[str, Word] = {}
    rest = list(words[taken:])
    legacy = last.text in LEGACY_LAUNCHERS
    while rest and rest[0].text.startswith("-") and rest[0].text not in ("-", "--"):
        flag = named(flags, rest[0].text)
        value, used = _value(flag, rest)
        legacy = legacy and not (flag and flag.path == "use_env")
        if flag and flag.outcome is Outcome.CARRIED and not flag.to:
            kept += rest[:used]
        elif flag and flag.to and not _VARIABLE.search(value):
            settings[flag.path] = Word(value, rest[0].path)
        else:
            notes.append(_removed(flag, rest[:used]))
        del rest[:used]
    if legacy:
        why = f"{last.text} passes --local-rank to the script, and elasticrun does not"
        notes.append(Note(last.path, Outcome.CHANGED, why, 'read int(os.environ["LOCAL_RANK"]) in the script'))
    new = [*_elasticrun(first), *kept, *rest]
    at = next((index for index, word in enumerate(new) if "args" in word.path[-2:]), len(new))
    return Launch(Style.LAUNCHER, tuple(new[:at]), tuple(new[at:]), settings, tuple(notes))


def _value(flag: Field | None, rest: Sequence[Word]) -> tuple[str, int]:
    """The value of the first word's flag, and how many words they take."""
    word = rest[0].text
    if flag is None:
        return "", 1
    if flag.path in SWITCHES:
        return "true", 1
    if word.startswith("--") and "=" in word:
        return word.partition("=")[2], 1
    if not word.startswith("--") and len(word) > 2:
        return word[2:], 1
    return (rest[1].text, 2) if len(rest) > 1 else ("", 1)


def _removed(flag: Field | None, words: Sequence[Word]) -> Note:
    at, text = words[0].path, " ".join(word.text for word in words)
    if flag is None:
        return Note(at, Outcome.LOST, f"elasticrun has no flag {text}", "see docs/reference/elasticrun.md")
    if flag.to:
        return Note(at, Outcome.IRRELEVANT, f"{text}: the operator sets this from {flag.to}")
    return Note(at, flag.outcome, f"{text}: {flag.why}", flag.instead)


def _python_option(word: Word) -> Note:
    """What becomes of `-u` and other options between python and -m."""
    if word.text == "-u":
        return Note(word.path, Outcome.IRRELEVANT, "worker processes of elasticrun do not buffer their output")
    why = "elasticrun starts Python without options"
    return Note(word.path, Outcome.LOST, why, "set the PYTHON* variable for it")


def _elasticrun(first: Word) -> list[Word]:
    """elasticrun, under the same Python if the input names it by its path."""
    folder, slash, name = first.text.rpartition("/")
    if not slash:
        return [Word("elasticrun", first.path)]
    python = first.text if _is_python(name) else f"{folder}/python"
    return [Word(text, first.path) for text in (python, "-m", "elasticjob_runtime")]


def _shell_line(words: Sequence[Word]) -> Word | None:
    """The command line that a shell runs."""
    flags = (index for index, word in enumerate(words[:-1]) if index and re.fullmatch(r"-[a-z]*c", word.text))
    return next((words[index + 1] for index in flags), None)


def _stays(word: Word, line: str, advice: str = "") -> Note:
    """A warning about a command that stays. `line`: all of it; `advice`: what to do, if that is known."""
    names = (*LAUNCHERS, *LAUNCHER_MODULES, *OTHER_LAUNCHERS)
    found = [name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", line)]
    if advice:
        instead = f"write command: {advice}"
    elif found == ["elasticrun"]:
        instead = "nothing: it starts elasticrun"
    elif found and found[0] in OTHER_LAUNCHERS:
        instead = (
            f"{found[0]} starts worker processes itself, so they do not restart in place: write command: "
            "[elasticrun, train.py] if the script allows it"
        )
    elif found:
        instead = f"in it, replace {found[0]} by elasticrun, and remove flags such as --nnodes, --rdzv-endpoint "
        instead += "and --master-addr, because the operator sets them"
    else:
        instead = (
            "if it starts the training, write elasticrun instead of python, or [elasticrun, --no-python, ...] for "
            "another program, because otherwise the script gets no rank"
        )
    why = "the command is carried over as it is: what it starts is not visible to the operator"
    return Note(word.path, Outcome.CHANGED, why, instead)


def _simple(text: str) -> str:
    """An ElasticJob's command for a shell command that is one plain call of a launcher or of python; else empty."""
    if _SHELL_SYNTAX.search(text.strip()):
        return ""
    try:
        words = [Word(word, ("command",)) for word in shlex.split(text)]
    except ValueError:
        return ""
    words = words[1:] if words and words[0].text == "exec" else words
    found = launch(words, [], implied_launcher=False, at=())
    simple = found.style in (Style.LAUNCHER, Style.SCRIPT)
    return f"[{', '.join(word.text for word in found.command)}]" if simple else ""
