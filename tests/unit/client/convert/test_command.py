"""What a container's command becomes."""

from __future__ import annotations

import pytest
from elasticjob.convert.command import Launch, Style, Word, launch
from elasticjob.convert.flags import SWITCHES, TORCHRUN, named
from elasticjob.convert.table import Outcome
from elasticjob_runtime.cli.arguments import build_parser


def of(command: list[str], args: list[str] | None = None, *, implied_launcher: bool = False) -> Launch:
    words = {
        key: [Word(text, (key, index)) for index, text in enumerate(texts or [])]
        for key, texts in (("command", command), ("args", args))
    }
    return launch(words["command"], words["args"], implied_launcher=implied_launcher, at=())


def texts(found: Launch) -> tuple[list[str], list[str]]:
    return [word.text for word in found.command], [word.text for word in found.args]


@pytest.mark.parametrize(
    ("command", "becomes"),
    [
        ("torchrun train.py --lr 1", "elasticrun train.py --lr 1"),
        ("torchrun --nnodes 1:4 --nproc-per-node=8 train.py", "elasticrun train.py"),
        ("torchrun --rdzv_backend c10d --rdzv-endpoint=a:1 --rdzv_id 7 train.py", "elasticrun train.py"),
        ("torchrun --rdzv-conf timeout=3 --standalone train.py", "elasticrun train.py"),
        ("torchrun --master-addr a --master_port=1 --node-rank 0 train.py", "elasticrun train.py"),
        ("torchrun --nproc_per=2 train.py", "elasticrun train.py"),
        ("torchrun -m pkg.train --nnodes 3", "elasticrun -m pkg.train --nnodes 3"),
        ("torchrun --no-python ./run --x", "elasticrun --no-python ./run --x"),
        ("torchrun -r3 -t 0:1 --log-dir /l --role w train.py", "elasticrun -r3 -t 0:1 --log-dir /l --role w train.py"),
        ("python -m torch.distributed.run --nnodes 2 train.py", "elasticrun train.py"),
        ("python3.11 -u -m torch.distributed.launch --use_env train.py", "elasticrun train.py"),
        ("python -m torchelastic.distributed.launch --nnodes=1:2 train.py", "elasticrun train.py"),
        ("python -m bagua.distributed.run --rdzv_id=3 train.py", "elasticrun train.py"),
        ("dlrover-run --auto-config --network-check train.py", "elasticrun train.py"),
        ("python -m dlrover.trainer.torch.elastic_run --node_unit 2 train.py", "elasticrun train.py"),
        ("/opt/venv/bin/torchrun train.py", "/opt/venv/bin/python -m elasticjob_runtime train.py"),
        ("/usr/bin/python3 -m torch.distributed.run a.py", "/usr/bin/python3 -m elasticjob_runtime a.py"),
        ("python train.py", "python train.py"),
        ("python -m pkg.train", "python -m pkg.train"),
        ("accelerate launch train.py", "accelerate launch train.py"),
        ("elasticrun --preload x train.py", "elasticrun --preload x train.py"),
    ],
)
def test_a_launcher_becomes_elasticrun_without_the_operators_flags(command: str, becomes: str) -> None:
    assert texts(of(command.split()))[0] == becomes.split()


def test_command_and_args_stay_divided() -> None:
    assert texts(of(["torchrun"], ["--nnodes=2", "train.py", "--lr=1"])) == (["elasticrun"], ["train.py", "--lr=1"])
    assert texts(of(["torchrun", "--nnodes=2", "train.py"], ["--lr=1"])) == (["elasticrun", "train.py"], ["--lr=1"])


def test_flags_of_an_image_whose_entry_point_is_the_launcher_follow_elasticrun() -> None:
    found = of([], ["--nproc_per_node=4", "train.py"], implied_launcher=True)
    assert texts(found) == (["elasticrun"], ["train.py"])
    assert found.settings["nproc_per_node"].text == "4"


@pytest.mark.parametrize(
    ("command", "style"),
    [
        (["torchrun", "a.py"], Style.LAUNCHER),
        (["python", "a.py"], Style.SCRIPT),
        (["python3", "-m", "a"], Style.SCRIPT),
        (["/bin/sh", "-c", "torchrun a.py"], Style.SHELL),
        (["bash", "-exc", "torchrun a.py"], Style.SHELL),
        (["python", "torchrun", "a.py"], Style.PROGRAM),
        (["./train"], Style.PROGRAM),
        (["deepspeed", "a.py"], Style.PROGRAM),
        ([], Style.NONE),
    ],
)
def test_the_style_of_a_command(command: list[str], style: Style) -> None:
    assert of(command).style is style


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sh", "-c", "torchrun --nnodes 2 a.py"], "write command: [elasticrun, a.py]"),
        (["sh", "-c", "exec python a.py --lr 1"], "write command: [python, a.py, --lr, 1]"),
        (["sh", "-c", "cd /x && torchrun --nnodes=$N a.py"], "replace torchrun by elasticrun"),
        (["sh", "-c", "cd /x; python a.py"], "the script gets no rank"),
        (["sh", "-c", "cd /x; elasticrun a.py"], "nothing"),
        (["env", "A=1", "torchrun", "a.py"], "replace torchrun by elasticrun"),
        (["accelerate", "launch", "a.py"], "elasticrun, train.py"),
        (["./train"], "elasticrun, --no-python"),
        (["sh", "-c", "cd /x; accelerate launch a.py"], "accelerate starts worker processes itself"),
    ],
)
def test_a_command_that_stays_comes_with_advice(command: list[str], words: str) -> None:
    (note,) = of(command).notes
    assert note.outcome is Outcome.CHANGED
    assert words in note.instead


def test_a_container_without_a_command_is_reported() -> None:
    (note,) = of([]).notes
    assert note.outcome is Outcome.MISSING


def test_a_script_that_gets_its_local_rank_as_an_argument_is_reported() -> None:
    notes = of(["python", "-m", "torch.distributed.launch", "a.py"]).notes
    assert any("--local-rank" in note.why for note in notes)


def test_flags_that_depend_on_variables_are_removed() -> None:
    found = of(["torchrun", "--nnodes=$(PET_NNODES)", "--nproc-per-node", "${N}", "a.py"])
    assert texts(found)[0] == ["elasticrun", "a.py"]
    assert not found.settings


def test_every_flag_of_torchrun_is_in_the_table() -> None:
    parser = build_parser()
    names = {action.dest for action in parser._actions if action.option_strings} - {"help"}
    own = {
        action.dest
        for group in parser._action_groups
        if group.title == "elasticrun only"
        for action in group._group_actions
    }
    assert {name for name in names - own if named(TORCHRUN, f"--{name}") is None} == set()


def test_flags_that_stay_are_flags_of_elasticrun() -> None:
    known = {name.lstrip("-").replace("-", "_") for name in build_parser()._option_string_actions}
    assert {flag.path for flag in TORCHRUN if flag.outcome is Outcome.CARRIED and not flag.to} <= known


def test_switches_have_no_value_in_elasticrun_either() -> None:
    actions = {
        name.lstrip("-").replace("-", "_"): action for name, action in build_parser()._option_string_actions.items()
    }
    for flag in TORCHRUN:
        if flag.path in actions:
            assert (flag.path in SWITCHES) == (actions[flag.path].nargs == 0), flag.path
