"""Every flag that only elasticrun has is declared once, and reaches the setting that its declaration names."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.cli.arguments import build_parser
from elasticjob_runtime.cli.own_flags import OWN_FLAGS, Flag, settings_from_flags
from elasticjob_runtime.contract import Env
from elasticjob_runtime.membership.crash_loop import CrashLimits
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.membership.preflight import PreflightSettings
from elasticjob_runtime.workers.environment import GroupSpec

SETTING = [pytest.param(flag, id=flag.name) for flag in OWN_FLAGS if flag.sets is not None]


@pytest.mark.parametrize("flag", SETTING)
def test_a_flag_names_a_field_that_exists_and_has_a_valid_default(flag: Flag) -> None:
    assert flag.sets is not None
    settings, field = flag.sets
    assert field in {field.name for field in dataclasses.fields(settings)}
    assert flag.check(flag.default) is None
    assert settings_from_flags(build_parser().parse_args(["train.py"]), settings)[field] == flag.default


@pytest.mark.parametrize(
    ("line", "settings", "values"),
    [
        ("--hang-factor=20", HangLimits, {"factor": 20.0}),
        ("--hang_factor 1", HangLimits, {"factor": 1.0}),
        ("--in-place=off", GroupSpec, {"in_place": False}),
        ("", GroupSpec, {"in_place": True, "stopped_timeout": 2.0, "ack_timeout": 2.0, "arrive_timeout": 30.0}),
        ("--ack-timeout=0 --arrive_timeout=600", GroupSpec, {"ack_timeout": 0.0, "arrive_timeout": 600.0}),
        ("--stopped-timeout=0.5", GroupSpec, {"stopped_timeout": 0.5}),
        ("--max-stalled-restarts=0", CrashLimits, {"max_stalled": 0}),
        ("", CrashLimits, {"max_stalled": None}),
        ("", PreflightSettings, {"checks": (), "command": (), "timeout": 60.0}),
        ("--preflight=Basic --preflight-command=c", PreflightSettings, {"checks": ("Basic",), "command": ("c",)}),
    ],
)
def test_a_flag_sets_its_field(line: str, settings: type, values: dict[str, object]) -> None:
    found = settings_from_flags(build_parser().parse_args([*line.split(), "train.py"]), settings)
    assert values.items() <= found.items()


def test_the_metrics_port_is_also_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(Env.METRICS_PORT, "9400")
    assert build_parser().parse_args(["train.py"]).metrics_port == 9400
    monkeypatch.setenv("PET_METRICS_PORT", "9500")
    assert build_parser().parse_args(["train.py"]).metrics_port == 9500
