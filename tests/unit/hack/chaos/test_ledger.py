"""Reading what worker processes wrote, including incomplete lines."""

from __future__ import annotations

import json
from pathlib import Path

from hack.chaos.ledger import LedgerReader, Save, Work, groups_of, parse

BEGIN = {"member": "w-0", "process": 7, "rank": 0, "world": 2, "round": 3, "run": "u-1", "fence": "1.0.3"}


def lines(*entries: dict[str, object]) -> list[str]:
    return [json.dumps({"at": float(number), **entry}) for number, entry in enumerate(entries)]


WHOLE = lines(
    {"event": "begin", **BEGIN},
    {"event": "load"},
    {"event": "group", "token": "t"},
    {"event": "restore", "step": 4, "digest": "d4"},
    {"event": "work", "step": 5, "epoch": 0, "samples": [1, 2]},
    {"event": "done", "step": 5},
    {"event": "saving", "step": 5, "digest": "d5"},
    {"event": "saved", "step": 5},
    {"event": "end", "step": 5},
)


def test_a_process_is_read_from_its_lines() -> None:
    process = parse(WHOLE)
    assert process is not None
    assert (process.member, process.round, process.token, process.loaded, process.restored) == (
        "w-0",
        3,
        "t",
        1.0,
        (4, "d4"),
    )
    assert process.work == (Work(5, 0, (1, 2)),)
    assert [(done.step, done.at) for done in process.done] == [(5, 5.0)]
    assert process.saves == (Save(5, "d5", 6.0, 7.0),)
    assert process.ended
    assert process.last_seen == 8.0


def test_a_save_that_was_cut_off_or_rejected_is_not_committed() -> None:
    process = parse(
        [*WHOLE[:7], json.dumps({"at": 7.0, "event": "refused", "step": 5, "error": "a newer group has begun"})]
    )
    assert process is not None
    assert process.saves == (Save(5, "d5", 6.0, None),)
    assert process.refused == ("a newer group has begun",)


def test_incomplete_lines_and_empty_files_are_ignored() -> None:
    process = parse([*WHOLE[:6], WHOLE[6][:20]])
    assert process is not None
    assert process.saves == ()
    assert parse(["", "{"]) is None


def test_groups_are_identified_by_token_in_the_order_of_their_restores(tmp_path: Path) -> None:
    for name, token, at in (("x", "later", 10.0), ("y", "earlier", 1.0)):
        for rank in (0, 1):
            wrote: list[dict[str, object]] = [
                {"event": "begin", **BEGIN, "rank": rank},
                {"event": "load"},
                {"event": "group", "token": token},
            ]
            wrote.append({"event": "restore", "step": 0, "digest": ""})
            text = "\n".join(json.dumps({"at": at, **entry}) for entry in wrote)
            (tmp_path / f"{name}{rank}.jsonl").write_text(f"{text}\n")
    groups = groups_of(LedgerReader(tmp_path).read())
    assert [(group.token, len(group.processes)) for group in groups] == [("earlier", 2), ("later", 2)]


def test_a_group_whose_rank_0_never_restored_does_not_count() -> None:
    process = parse(WHOLE[:3])
    assert process is not None
    assert groups_of([process]) == []


def test_a_growing_file_is_read_from_where_it_was_left(tmp_path: Path) -> None:
    file, reader = tmp_path / "a.jsonl", LedgerReader(tmp_path)
    assert reader.read() == []
    file.write_text("\n".join(WHOLE[:6])[:-5])
    (before,) = reader.read()
    assert (len(before.work), before.done) == (1, ())
    file.write_text("\n".join([*WHOLE, ""]))
    assert reader.read() == [parse(WHOLE)]
