"""A checkpoint directory has one history, however many groups save there: saves of an older group are rejected and
never loaded."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training import checkpoint
from elasticjob_runtime.training.checkpoint import FencedError, claims
from elasticjob_runtime.training.checkpoint.claims import (
    ANONYMOUS,
    Claim,
    Found,
    Listing,
    Writer,
    rejection,
    valid,
    writer_of,
)
from hypothesis import given
from hypothesis import strategies as st


def save(folder: pathlib.Path, step: int, what: str = "", keep: int = checkpoint.DEFAULT_KEEP) -> pathlib.Path:
    return checkpoint.save(folder, step, lambda file: pickle.dump((what, step), file), keep=keep)


def load(folder: pathlib.Path) -> tuple[str, int] | None:
    found = checkpoint.load(folder, pickle.load)
    return found.state if found else None


def test_an_older_round_cannot_commit_once_a_newer_one_has(tmp_path: pathlib.Path, act_as: Callable[..., None]) -> None:
    act_as("1.0.1")
    save(tmp_path, 10, "old")
    act_as("1.0.2")
    save(tmp_path, 11, "new")
    act_as("1.0.1")
    with pytest.raises(FencedError, match=r"checkpoint of step 50 .*round 1.*round 2.*has taken over"):
        save(tmp_path, 50, "old")
    assert load(tmp_path) == ("new", 11)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


JOB_A, JOB_B = {"job": "uid-a"}, {"job": "uid-b"}
FIRST, SECOND = ({"run_id": run_id, "operator": False} for run_id in ("first", "second"))
FENCED: dict[str, tuple[list[tuple[str, dict[str, Any], int]], str]] = {
    "a newer round takes over": ([("1.0.1", JOB_A, 10), ("1.0.2", JOB_A, 20)], ""),
    "a newer etcd takes over": ([("1.0.1", JOB_A, 10), ("1.1.1", JOB_A, 20)], ""),
    "a newer run takes over": ([("1.0.1", JOB_A, 10), ("2.0.1", JOB_A, 20)], ""),
    "another job takes over for good": (
        [("3.0.40", JOB_A, 10), ("1.0.1", JOB_B, 11), ("4.0.1", JOB_A, 12)],
        "run uid-b",
    ),
    "a later manual run takes over for good": (
        [("1700000000.0.8", FIRST, 10), ("1700000500.0.1", SECOND, 3), ("1700000000.0.9", FIRST, 11)],
        "run second@1700000500 has saved there since",
    ),
    "a run id is used again, and its rounds restart": (
        [("1700000000.0.8", FIRST, 10), ("1700900000.0.1", FIRST, 12)],
        "",
    ),
    "a script without an agent takes over": (
        [("1.0.9", JOB_A, 10), ("", {}, 5), ("", {}, 6), ("1.0.9", JOB_A, 11)],
        r"without an agent.*newest claim wins.*--release",
    ),
}
"""Who saves which steps, and why the last of them may not."""


@pytest.mark.parametrize(("saves", "rejected"), FENCED.values(), ids=FENCED)
def test_the_newest_claim_wins(
    tmp_path: pathlib.Path, act_as: Callable[..., None], saves: list[tuple[str, dict[str, Any], int]], rejected: str
) -> None:
    newest = None
    for number, (token, who, step) in enumerate(saves):
        act_as(token, **who)
        assert load(tmp_path) == newest
        if rejected and number == len(saves) - 1:
            with pytest.raises(FencedError, match=rejected):
                save(tmp_path, step)
        else:
            save(tmp_path, step, token)
            newest = (token, step)
    assert load(tmp_path) == newest


def test_a_write_overtaken_by_a_newer_group_is_rejected_before_it_commits(
    tmp_path: pathlib.Path, act_as: Callable[..., None]
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10, "old")

    def write_slowly(file: object) -> None:
        act_as("1.0.2")
        save(tmp_path, 11, "new")
        act_as("1.0.1")
        pickle.dump(("old", 12), file)  # type: ignore[arg-type]

    with pytest.raises(FencedError):
        checkpoint.save(tmp_path, 12, write_slowly)
    assert load(tmp_path) == ("new", 11)


def test_a_writer_frozen_right_before_its_rename_changes_nothing(
    tmp_path: pathlib.Path, act_as: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10, "old")
    real = claims.check

    def frozen_after_the_check(folder: pathlib.Path, claim: Claim) -> Claim:
        found = real(folder, claim)
        monkeypatch.setattr(claims, "check", real)
        act_as("1.0.2")
        save(tmp_path, 15, "new")
        act_as("1.0.1")
        return found

    monkeypatch.setattr(claims, "check", frozen_after_the_check)
    save(tmp_path, 15, "old")  # even for the same step
    assert load(tmp_path) == ("new", 15)
    act_as("1.0.3")
    assert load(tmp_path) == ("new", 15)
    save(tmp_path, 16, "third")
    assert load(tmp_path) == ("third", 16)
    assert checkpoint.steps(tmp_path) == [10, 15, 16]


def test_the_newest_groups_checkpoint_is_restored_even_at_an_earlier_step(
    tmp_path: pathlib.Path, act_as: Callable[..., None]
) -> None:
    act_as("1.0.1")
    for step in (10, 20, 90):
        save(tmp_path, step, "old")
    act_as("1.0.2")
    save(tmp_path, 21, "new")
    assert load(tmp_path) == ("new", 21)
    for step in (22, 23):
        save(tmp_path, step, "new")
    assert checkpoint.steps(tmp_path) == [21, 22, 23]


def test_without_an_agent_nothing_is_claimed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(Env.FENCE, raising=False)
    save(tmp_path, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000010.ckpt"]


def test_concurrent_claims_get_distinct_numbers(tmp_path: pathlib.Path) -> None:
    def one(round_: int) -> int:
        try:
            return claims.claim_directory(tmp_path, Writer(owner="job", fence=Fence(1, 0, round_))).number
        except claims.RejectedError:
            return 0

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(one, range(1, 25)))
    won = [number for number in numbers if number]
    assert len(won) == len(set(won))
    assert claims.list_directory(tmp_path).claim.writer.fence.round == 24
    assert len(claims.list_directory(tmp_path).claims) <= 4


@pytest.mark.parametrize("error", [1, 95], ids=["EPERM", "EOPNOTSUPP"])
def test_fencing_works_on_a_file_system_without_hard_links(
    tmp_path: pathlib.Path, act_as: Callable[..., None], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", no_links)
    act_as("1.0.1")
    save(tmp_path, 10, "old")
    act_as("1.0.2")
    save(tmp_path, 11, "new")
    act_as("1.0.1")
    with pytest.raises(FencedError):
        save(tmp_path, 12, "old")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"owner":1,"fence":"1.1.1","earlier":[],"kept":[]}', b'{"owner":"a","fence":"x"}', b"\xff"],
    ids=["empty", "cut JSON", "a list", "wrong type", "bad token", "no text"],
)
def test_an_unreadable_claim_loses_no_checkpoint(
    tmp_path: pathlib.Path, act_as: Callable[..., None], text: bytes
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10, "old")
    (tmp_path / ".claim-000000000005.json").write_bytes(text)
    assert load(tmp_path) == ("old", 10)
    save(tmp_path, 11, "old")
    assert load(tmp_path) == ("old", 11)
    newest = max(path.name for path in tmp_path.glob(".claim-*"))
    assert json.loads((tmp_path / newest).read_text().splitlines()[0])["kept"] == ["step-000000000010-1.ckpt"]


def test_an_invalid_fencing_token_is_named_in_the_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Env.FENCE, "seven")
    with pytest.raises(ValueError, match="seven"):
        save(tmp_path, 1)


numbers = st.integers(0, 3)
writers = st.builds(Writer, owner=st.sampled_from(["", "a", "b"]), fence=st.builds(Fence, numbers, numbers, numbers))
listings = st.builds(
    Listing,
    st.builds(
        Claim, number=numbers, writer=writers, kept=st.just(("step-000000000001.ckpt", "step-000000000002-1.ckpt"))
    ),
    st.lists(st.builds(Found, numbers, numbers), unique=True).map(tuple),
    st.just(()),
)


@given(listings)
def test_only_checkpoints_of_the_newest_claim_or_found_by_it_count(listing: Listing) -> None:
    history = valid(listing)
    for found in history:
        assert found.number >= listing.claim.number or found.name in (listing.claim.kept or ())
    assert [found.number for found in history] == sorted((found.number for found in history), reverse=True)


@given(writers, writers)
def test_of_two_writers_of_one_owner_only_the_older_is_rejected(one: Writer, other: Writer) -> None:
    claim = Claim(number=1, writer=one)
    if one.owner == other.owner != "":
        assert bool(rejection(claim, other)) == (other.fence < one.fence)
    else:
        assert not rejection(claim, other)


def test_the_writer_is_identified_by_the_agents_environment() -> None:
    assert writer_of({}) == ANONYMOUS
    operator = {Env.FENCE: "2.1.3", Env.JOB_UID: "u", Env.RUN: "2", "TORCHELASTIC_RUN_ID": "u-2"}
    assert writer_of(operator) == Writer(owner="u", fence=Fence(2, 1, 3))
    assert writer_of({Env.FENCE: "17.0.3", "TORCHELASTIC_RUN_ID": "mine"}) == Writer(
        owner="mine@17", fence=Fence(17, 0, 3)
    )
