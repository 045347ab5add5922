"""elasticrun takes torchrun's command line, so no job script has to be rewritten: our parser against
torch's, flag by flag."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import pytest
from elasticjob_runtime.cli.arguments import build_parser
from elasticjob_runtime.cli.own_flags import OWN_FLAGS

pytestmark = pytest.mark.torch

NOT_TAKEN = {"print_completion"}
"""torchrun's flags that do not run a job: a completion script names its own program."""

WITHOUT_VARIABLE = {"numa_binding", "logs_specs"}
"""Flags that torchrun does not read from PET_<FLAG>, for no stated reason."""

OTHER_DEFAULT = {"start_method"}
"""Flags with a default of our own: worker processes start from the zygote, which torchrun does not have."""

SAMPLES: dict[str, str] = {
    "nproc_per_node": "auto",
    "nnodes": "2:4",
    "rdzv_conf": "timeout=5,prefix=/a",
    "duplicate_stdout_filters": "apple,a,,b",
    "duplicate_stderr_filters": "",
    "numa_binding": "node",
    "start_method": "forkserver",
}
"""Values for flags; the others get a number if they take one, else a word."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PET_"):
            monkeypatch.delenv(name)


def torch_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()  # type: ignore[no-any-return, no-untyped-call, unused-ignore]


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in parser._actions if action.dest not in NOT_TAKEN}


def sample(action: argparse.Action) -> str:
    if action.dest in SAMPLES:
        return SAMPLES[action.dest]
    return "7" if action.type in (int, float) else "word"


def described(action: argparse.Action) -> dict[str, Any]:
    """What a user can observe of a flag. `value` stands for its type."""
    convert: Callable[[str], Any] = action.type if callable(action.type) else str
    return {
        "names": action.option_strings,
        "default": None if action.dest in OTHER_DEFAULT else action.default,
        "required": action.required,
        "arguments": action.nargs,
        "constant": action.const,
        "value": None if action.nargs == 0 else convert(sample(action)),
    }


def test_every_torchrun_flag_exists_and_means_the_same() -> None:
    theirs, ours = actions(torch_parser()), actions(build_parser())
    assert theirs.keys() - ours.keys() == set()
    for name, action in theirs.items():
        assert described(ours[name]) == described(action), f"the flag {name}"
        assert set(action.choices or ()) <= set(ours[name].choices or ()), f"choices of {name}"


def test_flags_that_torchrun_lacks_are_declared_as_our_own() -> None:
    extra = actions(build_parser()).keys() - actions(torch_parser()).keys()
    assert {f"--{name.replace('_', '-')}" for name in extra} == {flag.name for flag in OWN_FLAGS}


def test_positional_arguments_have_torchruns_order() -> None:
    positional = [
        [action.dest for action in parser._actions if not action.option_strings]
        for parser in (torch_parser(), build_parser())
    ]
    assert positional[0] == positional[1] == ["training_script", "training_script_args"]


def test_every_flag_is_read_from_the_same_variable_as_in_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, action in actions(torch_parser()).items():
        if not action.option_strings or name == "help":
            continue
        variable = f"PET_{name.upper()}"
        monkeypatch.setenv(variable, "1" if action.nargs == 0 else sample(action))
        theirs, ours = torch_parser().parse_args(["train.py"]), build_parser().parse_args(["train.py"])
        monkeypatch.delenv(variable)
        assert getattr(ours, name) == getattr(theirs, name), f"{name} by {variable}"
        unset = build_parser().parse_args(["train.py"])
        assert (getattr(ours, name) == getattr(unset, name)) == (name in WITHOUT_VARIABLE), (
            f"{variable} must have its effect"
        )


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_a_switch_is_read_from_its_variable_as_in_torchrun(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PET_STANDALONE", value)
    assert build_parser().parse_args(["train.py"]).standalone == torch_parser().parse_args(["train.py"]).standalone


@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "--nnodes 2:4 --nproc-per-node=gpu --start-method fork train.py",
        "--nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint host:29400 --rdzv_id 1 train.py",
        "--rdzv-conf timeout=5,use_libuv=0 --max_restarts 3 train.py --nnodes 7 -m",
        "--standalone train.py",
        "-m package.module --flag -- rest",
        "-r 3 -t 0:1,1:2 --log-dir logs --local-ranks-filter 0,1 train.py",
        "-r3 -t1 train.py",
        "--no-python ./program -x",
        "--duplicate-stdout-filters apple,,pie,orange train.py",
        "--monitor-interval 5 --shutdown_timeout 60 --signals-to-handle SIGTERM,SIGUSR1 train.py",
        "--node-rank 1 --master-addr 10.0.0.1 --master-port 29500 --nnodes 2 train.py",
        "--virtual-local-rank --run-path --role reader --local-addr ::1 train.py",
        "--rdzv-b c10d --max-r 3 train.py",
        "train.py --standalone --help",
    ],
)
def test_a_torchrun_command_line_is_parsed_identically(line: str) -> None:
    theirs, ours = vars(torch_parser().parse_args(line.split())), vars(build_parser().parse_args(line.split()))
    for name in theirs.keys() - NOT_TAKEN - OTHER_DEFAULT:
        assert ours[name] == theirs[name], name


@pytest.mark.parametrize(
    "line",
    [
        "", "--nnodes", "--max-restarts many train.py", "--start-method thread train.py", "--unknown 1 train.py",
        "--rdzv 1 train.py",
    ],
)  # fmt: skip
def test_what_torchrun_rejects_is_rejected(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    for parser in (torch_parser(), build_parser()):
        with pytest.raises(SystemExit) as rejected:
            parser.parse_args(line.split())
        assert rejected.value.code == 2
    assert "(see elasticrun --help)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--max-restrats=3 train.py", "unrecognized arguments: --max-restrats=3 (did you mean --max-restarts?) (see"),
        ("--zzz --max_restrat train.py", "arguments: --zzz --max_restrat (did you mean --max_restarts?) (see"),
        ("--zzz train.py", "unrecognized arguments: --zzz (see"),
    ],
)
def test_a_misspelled_flag_gets_a_suggestion(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(line.split())
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "script", "arguments"),
    [
        ("train.py --run=7", "train.py", ["--run=7"]),
        ("--nnodes 1:2 -t3 train.py --r 1 --log x", "train.py", ["--r", "1", "--log", "x"]),
        ("-m package.module --mod", "package.module", ["--mod"]),
        ("--no-python ./run --nproc=2 -- --max", "./run", ["--nproc=2", "--", "--max"]),
        ("--max-r 3 train.py --help", "train.py", ["--help"]),
        ("- --run", "-", ["--run"]),
    ],
)
def test_a_script_may_have_flags_that_look_like_abbreviated_ones(line: str, script: str, arguments: list[str]) -> None:
    """torchrun rejects `train.py --run=7` up to Python 3.11: it could be --run-path or --run_path."""
    found = build_parser().parse_args(line.split())
    assert (found.training_script, found.training_script_args) == (script, arguments)
