"""A site's check of a machine: bounded in time and output, and explained; and what `Basic` finds."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import sys
import time

import pytest
from elasticjob_runtime.agent.preflight import NetworkCheck, basic, check, command, network
from elasticjob_runtime.contract import Keys, PreflightValue
from elasticjob_runtime.membership.preflight import PreflightSettings
from elasticjob_runtime.workers.linux import stat_fields

from hack.embedded_etcd.memory import MemoryStore
from hack.support import eventually

KEYS = Keys("/elasticjob", "run-1")


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-S", "-c", code


COMMANDS = {
    "passes": (python("print('fine')"), None),
    "the last line": (python("print('no link\\n'); raise SystemExit(3)"), "exit code 3: no link"),
    "says nothing": (python("raise SystemExit(4)"), "exit code 4"),
    "no such program":
        (("/no/such/check",),
            "exit code 127: /no/such/check cannot be run (No such file or directory). Name a program of the image"),
    "127": (("sh", "-c", "exit 127"), "exit code 127: a program that it runs was not found"),
    "killed": (python("import os; os.kill(os.getpid(), 9)"), "killed by signal 9"),
    "prints megabytes":
        (python("print('x' * 5_000_000); print('y' * 999); raise SystemExit(1)"), f"exit code 1: {'y' * 200}"),
    "bytes": (python("import os; os.write(1, b'\\xff\\n'); raise SystemExit(1)"), "exit code 1: \ufffd"),
    "control characters, which etcd's values and terminals do not take":
        (python("import os; os.write(1, b'a\\0b\\x1b[1m\\n'); raise SystemExit(1)"), "exit code 1: a b [1m"),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_passes_with_exit_code_0_and_else_says_why(argv: tuple[str, ...], expected: str | None) -> None:
    assert command.run(argv, 60.0) == expected


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "child"
    code = f"echo waiting for the fabric; sleep 1000 & echo $! > {file}; wait"
    for seconds in (1, 10, 60):  # a busy machine may take longer than the first to start it
        found = command.run(("sh", "-c", code), seconds)
        if file.exists() and file.read_text().strip():
            break
    assert found == f"not done after {seconds} s: waiting for the fabric"
    child = int(file.read_text())
    eventually(lambda: not is_alive(child), what="the child is killed")


def is_alive(pid: int) -> bool:
    try:
        return stat_fields(pid)[0] not in ("Z", "X")
    except OSError:
        return False


def test_what_a_command_leaves_behind_is_not_waited_for() -> None:
    began = time.monotonic()
    assert command.run(("sh", "-c", "sleep 1000 & echo done"), 600.0) is None
    assert time.monotonic() - began < 300


def test_basic_measures_what_is_compared() -> None:
    measured = basic.measurements(MemoryStore(), "/key")
    assert set(measured) == {"compute", "etcd", "accelerators"}
    assert measured["compute"] > 0


def test_a_full_file_system_fails(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert basic.low_space("") is None
    assert basic.low_space(str(tmp_path / "none")) is None
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"total": 64 << 20, "free": 1 << 20}))
    assert basic.low_space(str(tmp_path)) == f"{tmp_path} has 1 MiB free of 64 MiB"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo '0, 0, No'", None),
        ("echo '0, 0, No'; echo '1, 2, No'", "GPU 1 has 2 uncorrected ECC errors"),
        ("echo 'GPU is lost'; exit 15", "exit code 15: GPU is lost"),
    ],
)
def test_what_nvidia_smi_says_is_a_check(
    script: str, expected: str | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert basic.gpu_faults() == expected


def published(store: MemoryStore, name: str, report: PreflightValue) -> None:
    store.put(KEYS.preflight(name), report.to_json())


def test_a_failing_member_is_told_why_and_publishes_it() -> None:
    store = MemoryStore()
    published(store, "b", PreflightValue())
    settings = PreflightSettings(command=("sh", "-c", "echo no link; exit 3"))
    why = check(settings, store, KEYS, "a", 2, {})
    assert why == "the preflight checks of this machine fail: command: exit code 3: no link"
    kv = store.get(KEYS.preflight("a"))
    assert kv is not None
    assert PreflightValue.from_json(kv.value).failed == {"command": "exit code 3: no link"}


def test_a_check_that_most_members_fail_is_ignored() -> None:
    store = MemoryStore()
    for name in ("b", "c"):
        published(store, name, PreflightValue(failed={"command": "exit code 3"}))
    store.put(KEYS.preflight("d"), "of another version")
    assert check(PreflightSettings(command=("false",)), store, KEYS, "a", 2, {}) is None


def test_nothing_is_checked_or_published_unless_asked_for() -> None:
    store = MemoryStore()
    assert check(PreflightSettings(), store, KEYS, "a", 2, {}) is None
    assert store.get(KEYS.preflight("a")) is None


def transfers(*names: str, most: int = 4, gone: str = "") -> dict[str, float | None]:
    """The speed of each of these members, checked at the same time. `gone`: one that has died in its check."""
    store = MemoryStore()
    if gone:
        published(store, gone, PreflightValue(endpoint="127.0.0.1 1 word"))
    checks = {name: NetworkCheck(store, KEYS, name, address="127.0.0.1", most=most) for name in names}
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        futures = {name: pool.submit(item.speed) for name, item in checks.items()}
        return {name: future.result() for name, future in futures.items()}


def test_members_transfer_data_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MOST_BYTES", 1 << 20)
    speeds = transfers("a", "b", "c", most=3)
    assert all(speed is not None and speed > 0 for speed in speeds.values()), speeds


def test_a_member_alone_passes_the_check_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "GATHER_SECONDS", 0.1)
    assert transfers("a") == {"a": None}


def test_a_member_whose_partner_does_not_answer_has_the_speed_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was killed in the middle of the check."""
    monkeypatch.setattr(network, "ROUND_SECONDS", 1.0)
    monkeypatch.setattr(network, "MOST_BYTES", 1 << 20)
    speeds = list(transfers("a", "c", "d", gone="b").values())
    assert all(speed is not None and speed > 0 for speed in speeds[1:]), speeds
    assert speeds[0] != 0.0, "the second partner answers, or there is none"


def test_a_member_that_died_in_its_check_accuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ROUND_SECONDS", 0.2)
    monkeypatch.setattr(network, "GATHER_SECONDS", 0.1)
    assert transfers("a", most=2, gone="b") == {"a": None}


def test_a_receiver_believes_only_those_who_know_its_word() -> None:
    receiver = network.Receiver("127.0.0.1", None)
    address, port, _ = receiver.endpoint.split(" ")
    try:
        with pytest.raises((OSError, ValueError)):
            network.send(f"{address} {port} wrong", "b", 1)
        assert receiver.speed("b", 1, 0.1) is None
    finally:
        receiver.close()
