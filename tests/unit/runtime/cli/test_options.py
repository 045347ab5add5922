"""Invalid flags get one line that names the flag and what to write instead, and their own exit code."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from elasticjob_runtime.cli import main, options, rendezvous_flags, script
from elasticjob_runtime.cli.arguments import build_parser, comma_separated
from elasticjob_runtime.cli.rendezvous_flags import parse_pairs
from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import Env, ExitCode
from elasticjob_runtime.rendezvous.config import RendezvousConf


def no_agent(*_: object) -> None:
    raise AssertionError("an agent was started")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("PET_", "ELASTICJOB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys.modules["elasticjob_runtime.cli.main"], "Agent", no_agent)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


ETCD = ("--rdzv-backend=etcd-v3", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=x")

WRONG = {
    "the minimum above the maximum": (("--nnodes=4:2", *ETCD), 2, "--nnodes=4:2: the minimum", "did you mean 2:4?"),
    "no members": (("--nnodes=0", *ETCD), 2, "--nnodes=0: the minimum must be at least 1", ""),
    "not a number of members": (("--nnodes=many", *ETCD), 2, "--nnodes=many: write a number, or MIN:MAX", ""),
    "members that are no whole replicas": (
        ("--nnodes=2:5", "--replica-size=2", *ETCD), 2, "--replica-size=2: the members must be whole replicas",
        "write multiples of 2",
    ),
    "a replica of too many members": (
        ("--nnodes=64", "--replica-size=64", *ETCD), 2, "--replica-size=64: a replica has at most 60 members", "",
    ),
    "a negative replica size": (("--replica-size=-1", *ETCD), 2, "--replica-size=-1: must be 0 or more", ""),
    "replicas that restart": (
        ("--replica-size=1", "--in-place=off", *ETCD), 2, "--replica-size=1: replicas train together in place only", "",
    ),
    "replicas that are spawned": (
        ("--replica-size=1", "--start-method=spawn", *ETCD), 2, "--replica-size=1: replicas need a Python script",
        "--start-method is not zygote",
    ),
    "replicas with a backend of torchrun": (
        ("--replica-size=1", "--rdzv-backend=c10d", "--nnodes=2"), 2, "--replica-size=1: --rdzv-backend=c10d is torchrun's own",
        "use --rdzv-backend=etcd-v3",
    ),
    "replicas with torchrun's default backend": (
        ("--replica-size=2", "--nnodes=2"), 2, "--replica-size=2: --rdzv-backend=static is torchrun's own", "or --standalone",
    ),
    "a fixed number of members that are no whole replicas": (
        ("--nnodes=3", "--replica-size=2", *ETCD), 2, "but --nnodes is 3", "write multiples of 2",
    ),
    "an unknown backend": (("--rdzv-backend=etcd3",), 2, "--rdzv-backend=etcd3: unknown backend; use one of etcd-v3, c10d", ""),
    "an unknown signal": (("--signals-to-handle=SIGTERM,SIGTREM",), 2, "'SIGTREM' is not a signal", "write names such as SIGTERM,SIGINT"),
    "a misspelled key": (("--rdzv-conf=lease_tl=5", *ETCD), 2, "unknown key 'lease_tl' (did you mean lease_ttl?)", "valid keys: ca_cert"),
    "no endpoint": (("--rdzv-backend=etcd-v3",), 2, "needs --rdzv-endpoint=HOST:PORT", ""),
    "an invalid endpoint": ((*ETCD, "--rdzv-endpoint=host:port"), 2, "host:port", ""),
    "an unknown key": ((*ETCD, "--rdzv-conf=lease=3"), 2, "--rdzv-conf: unknown key 'lease'", "lease_ttl"),
    "a key without a value": ((*ETCD, "--rdzv-conf=lease_ttl"), 2, "'lease_ttl' is not of the form key=value", ""),
    "a value that is not a number": ((*ETCD, "--rdzv-conf=join_timeout=soon"), 2, "join_timeout=soon is not a number of seconds", ""),
    "a lease that is too short": ((*ETCD, "--rdzv-conf=lease_ttl=1"), 2, "lease_ttl=1 is not a number of seconds of at least 2", ""),
    "an infinite lease": ((*ETCD, "--rdzv-conf=lease_ttl=inf"), 2, "lease_ttl=inf is not a number of seconds", ""),
    "NaN": ((*ETCD, "--rdzv-conf=start_grace=nan"), 2, "start_grace=nan is not a number of seconds", ""),
    "a negative time": ((*ETCD, "--rdzv-conf=join_delay=-1"), 2, "join_delay=-1 is not a number of seconds", ""),
    "a missing certificate": (
        (*ETCD, "--rdzv-conf=protocol=https,cacert=nowhere.pem"), 2, "nowhere.pem", "",
    ),
    "a certificate without https": ((*ETCD, "--rdzv-conf=cacert=ca.pem,protocol=http"), 2, "protocol=https", ""),
    "a user without a password": ((*ETCD, "--rdzv-conf=user=me"), 2, "password", ""),
    "negative restarts": ((*ETCD, "--max-restarts=-1"), 2, "--max-restarts=-1: must be 0 or more", ""),
    "no worker processes": ((*ETCD, "--nproc-per-node=0"), 2, "--nproc-per-node=0: write a number of at least 1", ""),
    "an unknown word for nproc-per-node": ((*ETCD, "--nproc-per-node=all"), 2, "--nproc-per-node=all: write a number", "auto, cpu, gpu or xpu"),
    "an invalid redirect": ((*ETCD, "--redirects=7"), 2, "--redirects: '7' is neither 0, 1, 2 or 3", ""),
    "an invalid tee": ((*ETCD, "--tee=x"), 2, "--tee: 'x' is neither", ""),
    "an invalid rank filter": ((*ETCD, "--local-ranks-filter=a"), 2, "--local-ranks-filter=a: write local ranks such as 0,1", ""),
    "a flag that only torchrun supports": ((*ETCD, "--numa-binding=node"), 2, "--numa-binding is not supported by elasticrun", "torchrun"),
    "an event file that cannot be written": ((*ETCD, "--events=nowhere/e.json"), 2, "--events=nowhere/e.json: No such file or directory", ""),
    "a log folder that cannot be created": ((*ETCD, "--log-dir=train.py/logs"), 2, "--log-dir=train.py/logs: Not a directory", ""),
    "negative stalled restarts": ((*ETCD, "--max-stalled-restarts=-1"), 2, "--max-stalled-restarts=-1: must be 0 or more", ""),
    "a hang factor below 1": ((*ETCD, "--hang-factor=0.5"), 2, "--hang-factor=0.5: must be 1 or more, or 0", ""),
    "a stopped timeout below 0": ((*ETCD, "--stopped-timeout=-1"), 2, "--stopped-timeout=-1: must be a number of", ""),
    "a hang factor of NaN": ((*ETCD, "--hang-factor=nan"), 2, "--hang-factor=nan: must be 1 or more", ""),
    "a negative backoff": ((*ETCD, "--rdzv-conf=restart_backoff=-1"), 2, "restart_backoff=-1 is not a number of seconds", ""),
    "a port that is too high": ((*ETCD, "--metrics-port=70000"), 2, "--metrics-port=70000: not a TCP port", ""),
    "a negative port": ((*ETCD, "--metrics-port=-1"), 2, "--metrics-port=-1: not a TCP port", ""),
    "a slash in the run id": ((*ETCD, "--rdzv-id=team/job1"), 2, "--rdzv-id=team/job1: must be a name without a slash", ""),
    "several machines without a run id": ((*ETCD, "--rdzv-id=none", "--nnodes=2"), 2, "no --rdzv-id", "--rdzv-conf=prefix=/NAME"),
    "a master port that is no port": ((*ETCD, "--master-port=0"), 2, "--master-port=0: write a TCP port from 1 to 65532", ""),
    "a master port too close to the end": ((*ETCD, "--master-port=65533"), 2, "--master-port=65533: write a TCP port", "the 3 after it"),
    "an invalid port range": ((*ETCD, "--port-range=30000"), 2, "--port-range: '30000' is not a range of TCP ports", "write LOW-HIGH"),
    "custom log specs": ((*ETCD, "--logs-specs=mine"), 2, "--logs-specs=mine: elasticrun supports only `default`", "torchrun"),
    "an unknown local address": ((*ETCD, "--local-addr=no.such.host.invalid"), 69, "--local-addr=no.such.host.invalid: ", "give an IP"),
    "a program and a module": ((*ETCD, "--no-python", "-m"), 2, "--no-python and --module cannot be used together", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_flag_gets_one_line_with_what_to_write(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, code, says, also = WRONG[name]
    assert main([*flags, "train.py"]) == code
    output = capsys.readouterr().err
    assert output.startswith("elasticrun: ")
    assert output.count("\n") == 1, "one line"
    assert says in output
    assert also in output


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("nowhere.py",), "nowhere.py: no such script"),
        (("-m", "nowhere.train"), "-m nowhere.train: no such module"),
        (("--no-python", "nowhere"), "nowhere: no such program, or it is not executable"),
        (("--no-python", "./train.py"), "./train.py: no such program, or it is not executable"),
    ],
)
def test_a_script_that_cannot_be_run_is_named(
    flags: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ETCD, *flags]) == ExitCode.NO_SCRIPT
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--max-restarts=many", "train.py"), "--max_restarts: invalid int value: 'many' (see elasticrun --help)"),
        (("--metrics-port=http", "train.py"), "argument --metrics-port/--metrics_port: invalid int value: 'http'"),
        (("--preflight=,,", "train.py"), "argument --preflight: must name at least one of Basic, Network"),
        (("--preflight=Disk", "train.py"), "argument --preflight: must be of Basic, Network, not Disk"),
        (("--start-method=magic", "train.py"), "invalid choice: 'magic'"),
        ((), "the following arguments are required: training_script"),
    ],
)
def test_an_unparsable_flag_gets_one_line_without_the_whole_usage(
    arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    output = capsys.readouterr().err
    assert says in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("where", [("--standalone",), ETCD])
def test_replicas_of_a_program_that_is_not_python_are_refused(
    where: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*where, "--replica-size=1", "--no-python", "true"]) == ExitCode.USAGE
    assert "--replica-size=1: replicas need a Python script that is forked, and the command is not Python" in (
        capsys.readouterr().err
    )


def test_a_metrics_port_in_use_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*ETCD, f"--metrics-port={port}", "train.py"]) == ExitCode.USAGE
    assert f"--metrics-port={port}: Address already in use" in capsys.readouterr().err


def test_a_usage_error_is_written_to_the_termination_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "log"
    monkeypatch.setenv(Env.TERMINATION_LOG, str(path))
    assert main([*ETCD, "--nnodes=4:2", "train.py"]) == ExitCode.USAGE
    assert path.read_text().startswith("elasticrun: --nnodes=4:2: ")


def test_debug_raises_the_error_with_its_traceback() -> None:
    with pytest.raises(UsageError):
        main([*ETCD, "--debug", "nowhere.py"])


@pytest.mark.parametrize(("text", "expected"), [("3", (3, 3)), ("2:4", (2, 4)), (" 1:1 ", (1, 1))])
def test_nnodes_is_a_number_or_a_range(text: str, expected: tuple[int, int]) -> None:
    assert options.min_max(text) == expected


def test_rdzv_conf_is_split_into_settings_and_connection() -> None:
    text = "prefix=/team,lease_ttl=10,join_timeout=50,start_grace=0,join_delay=3,user=me,password=p=q,timeout=900"
    assert rendezvous_flags.rendezvous_conf(text) == RendezvousConf(
        prefix="/team", lease_ttl=10.0, join_timeout=50.0, start_grace=0.0, join_delay=3.0,
        connection={"user": "me", "password": "p=q"},
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "last_call_timeout=30,close_timeout=1,keep_alive_interval=5"])
def test_rdzv_conf_has_defaults_whatever_keys_of_torchs_backends_it_has(text: str) -> None:
    assert rendezvous_flags.rendezvous_conf(text) == RendezvousConf()


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("cpu", os.cpu_count()), ("auto", os.cpu_count())])
def test_nproc_per_node_is_a_number_or_the_cpus_without_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, text: str, count: int
) -> None:
    monkeypatch.setattr(options, "_has_accelerator", lambda: False)
    assert options.workers_per_member(text) == count


def test_the_worker_command_follows_the_flags() -> None:
    Path("package").mkdir()
    parse = build_parser().parse_args
    python = script.command(parse(["train.py", "--lr", "3"]))
    assert python.for_rank(0)[1:] == ["-u", "train.py", "--lr", "3"]
    module = script.command(parse(["-m", "package.train", "x"]))
    assert module.for_rank(0)[1:] == ["-u", "-m", "package.train", "x"]
    program = script.command(parse(["--no-python", "sh", "-c", "echo ${local_rank}"]))
    assert program.for_rank(3) == ["sh", "-c", "echo 3"]


def test_an_executable_script_runs_without_python(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    assert script.command(build_parser().parse_args(["--no-python", "./train.sh"])).for_rank(0) == ["./train.sh"]


def test_log_flags_become_log_settings() -> None:
    args = build_parser().parse_args(
        ["--log-dir=l", "-r=1", "-t=0:3", "--local-ranks-filter=0,2", "--duplicate-stderr-filters=a,b", "train.py"]
    )
    found = options.log_settings(args)
    assert (found.directory, found.redirects, found.tee, found.ranks_filter) == ("l", 1, {0: 3}, frozenset({0, 2}))
    assert found.stderr_filters == ("a", "b")


def test_a_members_name_comes_from_the_operator_or_is_unique() -> None:
    assert options.member_id({"ELASTICJOB_MEMBER_ID": "digits-worker-0"}) == "digits-worker-0"
    first, second = options.member_id({}), options.member_id({})
    assert first != second, "two agents on one host need distinct names"


def test_modules_are_preloaded_only_with_the_zygote() -> None:
    parse = build_parser().parse_args
    plain = parse(["--start-method=spawn", "train.py"])
    assert script.preload(plain, script.command(plain)) is None
    forked = parse(["--preload=numpy,auto", "train.py"])
    assert script.preload(forked, script.command(forked)) == ["numpy", "auto"]
    program = parse(["--no-python", "sh"])
    assert script.preload(program, script.command(program)) is None


FORK = ("--start-method", "fork")


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--nnodes=2", "--events", "e.json", "train.py"], ["--nnodes=2", "train.py"]),
        (["--events=e.json", "--debug", "--nnodes", "2", "train.py"], ["--nnodes", "2", "train.py"]),
        (["--preload=auto", "train.py", "--debug", "--events", "mine"], ["train.py", "--debug", "--events", "mine"]),
        (["train.py"], ["train.py"]),
        (["--max-st", "2", "--hang_f=3", "--deb", "train.py"], ["train.py"]),
        (["--start-method", "zygote", "--start_method=zygote", "train.py"], ["train.py"]),
        ([*FORK, "--rdzv-id", "", "train.py", ""], [*FORK, "--rdzv-id", "", "train.py", ""]),
        (["--role", "train.py", "--debug", "train.py"], ["--role", "train.py", "train.py"]),
        (
            ["-r3", "-t", "0:1", "--debug", "--", "train.py", "--", "x"],
            ["-r3", "-t", "0:1", "--", "train.py", "--", "x"],
        ),
    ],
)
def test_torchrun_receives_only_its_own_flags(
    monkeypatch: pytest.MonkeyPatch, given: list[str], passed: list[str]
) -> None:
    run: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, command: run.append(command))
    main(["--rdzv-backend=c10d", *given])
    assert run == [[sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", *passed]]


def test_key_value_pairs_are_parsed() -> None:
    assert parse_pairs(" a = 1 ,b=x=y,, ") == {"a": "1", "b": "x=y"}


def test_a_double_comma_in_a_list_is_a_literal_comma() -> None:
    assert comma_separated("a,b,,c") == ["a", "b,c"]
