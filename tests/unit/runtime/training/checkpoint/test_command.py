"""`python3 -m elasticjob_runtime.training.checkpoint`: a person sees what a directory has, and decides what counts."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import BinaryIO

import pytest
from elasticjob_runtime.training import checkpoint
from elasticjob_runtime.training.checkpoint import FencedError, claims, manifest
from elasticjob_runtime.training.checkpoint.__main__ import main

from tests.unit.runtime.training.checkpoint.steps import load_step, save


def test_each_checkpoint_is_listed_with_its_state_and_whether_it_counts(
    tmp_path: pathlib.Path, act_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    act_as("1.0.1")
    put_back = save(tmp_path, 10)
    content = put_back.read_bytes()
    put_back.unlink()
    save(tmp_path, 11)
    act_as("1.0.2")
    damaged = save(tmp_path, 12)
    damaged.write_bytes(bytes(20) + damaged.read_bytes()[20:])
    put_back.write_bytes(content)
    assert main([str(tmp_path), "--verify"]) == 0
    _, *rows, owner = capsys.readouterr().out.splitlines()
    assert [row.split()[1] for row in rows] == ["12", "11", "10"]
    assert "corrupt: its checksum does not match" in rows[0]
    assert rows[1].split()[-5:] == ["job,", "run", "1", "intact", "yes"]
    assert "no: added after a newer group" in rows[2]
    assert owner.startswith("Claimed by job since ")
    assert owner.endswith("run 1, round 2.")


def test_a_checkpoint_that_a_person_chooses_is_the_next_to_be_loaded_and_saving_goes_on(
    tmp_path: pathlib.Path, act_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    act_as("1.0.1")
    for step in (10, 11, 12):
        save(tmp_path, step)
    assert main([str(tmp_path), "--use", "step-000000000010-1.ckpt"]) == 0
    assert "continues from step 10" in capsys.readouterr().out
    assert load_step(tmp_path) == 10
    save(tmp_path, 11)
    assert load_step(tmp_path) == 11


def test_a_chosen_checkpoint_is_listed_with_who_has_saved_it_and_the_claim_with_when_it_began(
    tmp_path: pathlib.Path, act_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    act_as("1.0.1", job="first")
    save(tmp_path, 10)
    act_as("2.0.1", job="second")
    save(tmp_path, 20)
    claimed_at = claims.list_directory(tmp_path).claim.claimed_at
    assert main([str(tmp_path), "--use", "step-000000000010-1.ckpt"]) == 0
    assert claims.list_directory(tmp_path).claim.claimed_at == claimed_at

    def saved_by() -> dict[str, str]:
        capsys.readouterr()
        assert main([str(tmp_path)]) == 0
        _, *rows, _ = capsys.readouterr().out.splitlines()
        return {row.split()[1]: " ".join(row.split()[5:8]) for row in rows}

    assert saved_by() == {"10": "first, run 1", "20": "second, run 2"}
    assert load_step(tmp_path) == 10
    save(tmp_path, 11)
    assert saved_by() == {"11": "second, run 2", "10": "first, run 1", "20": "second, run 2"}


def test_a_running_group_goes_on_when_a_person_chooses_during_its_save_and_what_it_saves_is_newer(
    tmp_path: pathlib.Path, act_as: Callable[..., None]
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10)
    save(tmp_path, 11)

    def write(file: BinaryIO) -> None:
        assert main([str(tmp_path), "--use", "step-000000000010-1.ckpt"]) == 0
        file.write(b"12")

    path = checkpoint.save(tmp_path, 12, write)
    assert path.name == "step-000000000012-3.ckpt"
    found = checkpoint.load(tmp_path, lambda file: file.read())
    assert found is not None
    assert found.state == b"12"
    assert checkpoint.steps(tmp_path) == [10, 11, 12]


def test_what_a_running_group_saves_while_a_choice_is_verified_counts(
    tmp_path: pathlib.Path, act_as: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10)
    save(tmp_path, 11)
    write = claims.write_claim

    def save_first(folder: pathlib.Path, claim: claims.Claim) -> bool:
        save(tmp_path, 12)
        return write(folder, claim)

    with monkeypatch.context() as patched:
        patched.setattr(claims, "write_claim", save_first)
        assert main([str(tmp_path), "--use", "step-000000000010-1.ckpt"]) == 0
    assert checkpoint.steps(tmp_path) == [10, 11, 12]


def test_only_a_file_of_the_directory_can_be_chosen(
    tmp_path: pathlib.Path, act_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    act_as("1.0.1")
    path = save(tmp_path, 10)
    assert main([str(tmp_path), "--use", f"/backup/{path.name}"]) == 1
    assert "copy it there first" in capsys.readouterr().err
    assert main([str(tmp_path), "--use", str(path)]) == 0


def test_a_running_group_goes_on_when_a_person_releases_the_directory_during_its_save(
    tmp_path: pathlib.Path, act_as: Callable[..., None]
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10)
    checkpoint.save(tmp_path, 11, lambda _: main([str(tmp_path), "--release"]))
    assert checkpoint.steps(tmp_path) == [10, 11]


@pytest.mark.parametrize("damage", ["", "corrupt", "cut", "missing"])
def test_the_shards_of_a_sharded_checkpoint_are_verified_too(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    shard = tmp_path / "step-000000000001-0.shards-00ff" / "__0_0.distcp"
    shard.parent.mkdir()
    shard.write_bytes(b"weights")
    about = {shard.name: (7, hashlib.sha256(b"weights").hexdigest())}
    document = {"format": manifest.FORMAT, "step": 1, "folder": shard.parent.name, "world_size": 1, "files": about}
    name = checkpoint.save(tmp_path, 1, lambda file: file.write(json.dumps(document).encode())).name
    expected = {
        "": "intact",
        "corrupt": "has another checksum than when it was written",
        "cut": "has 3 bytes instead of 7",
        "missing": "is missing",
    }[damage]
    if damage == "missing":
        shard.unlink()
    elif damage:
        shard.write_bytes({"corrupt": b"WEIGHTS", "cut": b"wei"}[damage])
    assert main([str(tmp_path), "--verify"]) == 0
    assert expected in capsys.readouterr().out
    assert main([str(tmp_path), "--use", name]) == (1 if damage else 0)
    assert not damage or expected in capsys.readouterr().err


def test_a_directory_that_is_released_can_be_used_by_an_earlier_job_without_going_back(
    tmp_path: pathlib.Path, act_as: Callable[..., None]
) -> None:
    act_as("1.0.1", job="first")
    save(tmp_path, 10)
    act_as("1.0.1", job="second")
    save(tmp_path, 20)
    act_as("1.0.1", job="first")
    with pytest.raises(FencedError, match="--release"):
        save(tmp_path, 21)
    assert main([str(tmp_path), "--release"]) == 0
    save(tmp_path, 21)
    assert load_step(tmp_path) == 21


@pytest.mark.parametrize(
    ("folder", "arguments", "message"),
    [
        (".", ["--use", "step-000000000009.ckpt"], "there is no checkpoint"),
        (".", ["--use", "step-000000000001.ckpt"], "corrupt"),
        ("none", [], "none: No such file or directory"),
    ],
    ids=["no such checkpoint", "a corrupt one", "no such folder"],
)
def test_what_cannot_be_used_is_said_in_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], folder: str, arguments: list[str], message: str
) -> None:
    save(tmp_path, 1).write_bytes(b"")
    assert main([str(tmp_path / folder), *arguments]) == 1
    assert message in capsys.readouterr().err
