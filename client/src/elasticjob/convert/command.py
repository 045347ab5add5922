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

from elasticjob.convert.flags import LAUNCHER_MODULES, LAUNCHERS, LEGACY_LAUNCHERS, Fate, Flag, named
from elasticjob.convert.paths import Path
from elasticjob.convert.table import Note, Outcome

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
OTHER_LAUNCHERS = frozenset({"accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "ray", "tune"})
_OUTCOMES = {
    Fate.OPERATOR: Outcome.IRRELEVANT,
    Fate.IRRELEVANT: Outcome.IRRELEVANT,
    Fate.CHANGED: Outcome.CHANGED,
    Fate.LOST: Outcome.LOST,
}
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
    """A word of the command, and where it is in the input."""

    text: str
    path: Path


@dataclasses.dataclass(frozen=True)
class Setting:
    """A literal value of a flag that becomes a field."""

    value: str
    path: Path
    also: tuple[Path, ...] = ()


@dataclasses.dataclass(frozen=True)
class Launch:
    """What a container runs in an ElasticJob."""

    style: Style
    command: tuple[Word, ...]
    args: tuple[Word, ...]
    settings: dict[str, Setting] = dataclasses.field(default_factory=dict)
    """Name of the flag -> its value."""
    notes: tuple[Note, ...] = ()


def launch(command: Sequence[Word], args: Sequence[Word], *, implied_launcher: bool, at: Path) -> Launch:
    """Converts a container's command. `implied_launcher`: the image's entry point is torchelastic's launcher, and
    `args` are its flags. `at`: the container's path."""
    words = [*command, *args]
    if implied_launcher and not command and args:
        note = Note(
            (*at, "command"),
            Outcome.CHANGED,
            "the image's entry point was torchelastic's launcher",
            "elasticrun replaces it: check that the image has Python 3.10 or newer, and torch",
            "spec.workers.template.spec.containers[].command",
        )
        found = _split(_launcher([Word("torchrun", (*at, "command")), *args], 1))
        return dataclasses.replace(found, notes=(note, *found.notes[1:]))
    if not words or not command:
        return Launch(Style.NONE, tuple(command), tuple(args), notes=(_no_command(at),))
    if _name(words[0].text) == "elasticrun":
        return Launch(Style.LAUNCHER, tuple(command), tuple(args))
    taken = _launcher_words(words)
    if taken:
        return _split(_launcher(words, taken))
    program = _name(words[0].text)
    if program in SHELLS and (text := _shell_text(words)):
        return Launch(Style.SHELL, tuple(command), tuple(args), notes=(_shell_note(text),))
    if _is_python(program) and len(words) > 1 and _name(words[1].text) not in (*LAUNCHERS, *OTHER_LAUNCHERS):
        return Launch(Style.SCRIPT, tuple(command), tuple(args))
    notes = tuple(note for note in (_program_note(words),) if note)
    return Launch(Style.PROGRAM, tuple(command), tuple(args), notes=notes)


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
    program = words[taken - 1].text
    flags = LAUNCHERS.get(_name(program)) or LAUNCHER_MODULES[program]
    kept: list[Word] = []
    notes = [_replaced(words[:taken]), *_python_options(words[1:taken])]
    settings: dict[str, Setting] = {}
    rest = list(words[taken:])
    legacy = program in LEGACY_LAUNCHERS
    while rest and rest[0].text.startswith("-") and rest[0].text not in ("-", "--"):
        flag = named(flags, rest[0].text)
        value, used = _value(flag, rest)
        legacy = legacy and not (flag and flag.name == "use_env")
        if flag and flag.fate is Fate.KEPT:
            kept += rest[:used]
        elif flag and flag.fate is Fate.SET and not _VARIABLE.search(value):
            settings[flag.name] = Setting(value, rest[0].path, tuple(word.path for word in rest[1:used]))
        else:
            notes.append(_removed(flag, rest[:used]))
        del rest[:used]
    if legacy:
        notes.append(_local_rank(words[taken - 1]))
    return Launch(Style.LAUNCHER, (*_elasticrun(words[:taken]), *kept, *rest), (), settings, tuple(notes))


def _value(flag: Flag | None, rest: Sequence[Word]) -> tuple[str, int]:
    """The value of the first word's flag, and how many words they take."""
    word = rest[0].text
    if flag is None:
        return "", 1
    if flag.switch:
        return "true", 1
    if word.startswith("--") and "=" in word:
        return word.partition("=")[2], 1
    if not word.startswith("--") and len(word) > 2:
        return word[2:], 1
    return (rest[1].text, 2) if len(rest) > 1 else ("", 1)


def _removed(flag: Flag | None, words: Sequence[Word]) -> Note:
    also = tuple(word.path for word in words[1:])
    text = " ".join(word.text for word in words)
    if flag is None:
        return Note(words[0].path, Outcome.LOST, f"elasticrun has no flag {text}", "see docs/elasticrun.md", also=also)
    if flag.fate is Fate.SET:
        why = f"{text}: the operator sets this from {flag.to}"
        return Note(words[0].path, Outcome.IRRELEVANT, why, flag.instead, also=also)
    return Note(words[0].path, _OUTCOMES[flag.fate], f"{text}: {flag.why}", flag.instead, also=also)


def _local_rank(word: Word) -> Note:
    return Note(
        word.path,
        Outcome.CHANGED,
        f"{word.text} passes --local-rank to the script, and elasticrun does not",
        'read int(os.environ["LOCAL_RANK"]) in the script',
    )


def _replaced(words: Sequence[Word]) -> Note:
    also = tuple(word.path for word in words[1:] if word.text in ("-m", *LAUNCHER_MODULES))
    return Note(words[0].path, Outcome.CARRIED, "elasticrun takes its place", also=also)


def _python_options(words: Sequence[Word]) -> list[Note]:
    """What becomes of `-u` and other options between python and -m."""
    options = [word for word in words if word.text.startswith("-") and word.text != "-m"]
    return [
        Note(word.path, Outcome.IRRELEVANT, "worker processes of elasticrun do not buffer their output")
        if word.text == "-u"
        else Note(
            word.path, Outcome.LOST, "elasticrun starts Python without options", "set the PYTHON* variable for it"
        )
        for word in options
    ]


def _elasticrun(words: Sequence[Word]) -> list[Word]:
    """elasticrun, under the same Python if the input names it by its path."""
    first = words[0]
    folder, slash, name = first.text.rpartition("/")
    if not slash:
        return [dataclasses.replace(first, text="elasticrun")]
    python = first.text if _is_python(name) else f"{folder}/python"
    return [dataclasses.replace(first, text=text) for text in (python, "-m", "elasticjob_runtime")]


def _split(found: Launch) -> Launch:
    """Divides the words into command and args again, as they were divided in the input."""
    words = list(found.command)
    in_args = [index for index, word in enumerate(words) if "args" in word.path[-2:]]
    at = in_args[0] if in_args else len(words)
    return dataclasses.replace(found, command=tuple(words[:at]), args=tuple(words[at:]))


def _shell_text(words: Sequence[Word]) -> Word | None:
    """The command line that a shell runs."""
    for index, word in enumerate(words[1:-1], 1):
        if re.fullmatch(r"-[a-z]*c", word.text):
            return words[index + 1]
    return None


def _shell_note(text: Word) -> Note:
    why = "a shell command is carried over as it is: what it starts is not visible to the operator"
    launchers = [name for name in LAUNCHERS if re.search(rf"(?<![\w-]){name}\b", text.text)]
    launchers += [name for name in LAUNCHER_MODULES if re.search(rf"-m {re.escape(name)}\b", text.text)]
    simple = _simple(text.text)
    if simple:
        instead = f"write command: [{', '.join(simple)}]"
    elif launchers and launchers != ["elasticrun"]:
        instead = f"in it, replace {launchers[0]} by elasticrun, and remove flags such as --nnodes, --rdzv-endpoint "
        instead += "and --master-addr, because the operator sets them"
    elif "elasticrun" in launchers:
        instead = "nothing: it starts elasticrun"
    else:
        instead = (
            "if it starts the training with python, write elasticrun instead, because otherwise the script gets no rank"
        )
    return Note(text.path, Outcome.CHANGED, why, instead)


def _simple(text: str) -> list[str]:
    """The words of an ElasticJob's command for a shell command that is one plain call of a launcher or of python."""
    if _SHELL_SYNTAX.search(text.strip()):
        return []
    try:
        words = [Word(word, ("command",)) for word in shlex.split(text)]
    except ValueError:
        return []
    words = words[1:] if words and words[0].text == "exec" else words
    found = launch(words, [], implied_launcher=False, at=())
    return [word.text for word in found.command] if found.style in (Style.LAUNCHER, Style.SCRIPT) else []


def _program_note(words: Sequence[Word]) -> Note | None:
    """A warning if the program starts processes itself."""
    first = words[0]
    inner = next((word for word in words if _name(word.text) in (*LAUNCHERS, *OTHER_LAUNCHERS)), None)
    if inner is None:
        return Note(
            first.path,
            Outcome.CHANGED,
            f"{first.text} runs as it is, so the operator starts no worker processes for it",
            "if it is the training script, write command: [elasticrun, --no-python, ...], because otherwise it gets no "
            "rank",
        )
    if _name(inner.text) in LAUNCHERS:
        return Note(
            inner.path,
            Outcome.CHANGED,
            f"{first.text} runs {inner.text} with its flags as they are",
            f"replace {inner.text} by elasticrun, and remove the flags that the operator sets",
        )
    return Note(
        inner.path,
        Outcome.CHANGED,
        f"{inner.text} starts worker processes itself, so they do not restart in place",
        "write command: [elasticrun, train.py] if the script allows it, and remove flags for the number and address of "
        "machines, because the operator sets those",
    )
