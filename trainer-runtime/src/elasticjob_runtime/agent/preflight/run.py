"""Runs the checks, publishes what they found, and compares it with what the other members have published.

It runs before the agent registers, so those that train do not notice. Without etcd nothing is compared: that it is
unreachable is for the rendezvous to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from elasticjob_runtime.agent.preflight import basic, command
from elasticjob_runtime.agent.preflight.network import NetworkCheck, read_reports
from elasticjob_runtime.contract import PREFLIGHT_FAILED, Keys, PreflightValue
from elasticjob_runtime.etcd.interface import Store, StoreError
from elasticjob_runtime.membership.preflight import BANDWIDTH, BASIC, NETWORK, PreflightSettings, describe, judge, waits

logger = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
"""How long a member that fails a check waits for the reports of the others, s. They run the same checks as the job
starts; without their reports, a check that fails everywhere would end every agent."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PAUSE = 0.5
_STORE_SECONDS = 5.0
_COMMAND = "command"


def check(
    settings: PreflightSettings,
    store: Store,
    keys: Keys,
    me: str,
    least: int,
    environment: Mapping[str, str],
    network: NetworkCheck | None = None,
) -> str | None:
    """Returns why this member must not join; None: it may. `least`: the fewest members that train. `network`: the check
    of that name."""
    if not settings.enabled:
        return None
    began = time.monotonic()
    own = _own_report(settings, store, keys.preflight(me), environment, network)
    reports = _exchange(store, keys, me, own, least, settings)
    outcome = judge(me, reports)
    for name, found in sorted(outcome.distrusted.items()):
        logger.warning("preflight: %s: %s", name, found)
    if outcome.failed:
        return f"{PREFLIGHT_FAILED}{describe(outcome.failed)}"
    logger.info("preflight: passed in %.1f s", time.monotonic() - began)
    return None


def _own_report(
    settings: PreflightSettings, store: Store, key: str, environment: Mapping[str, str], network: NetworkCheck | None
) -> PreflightValue:
    failed: dict[str, str] = {}
    measured: dict[str, float] = {}
    speed = network.speed() if network is not None and NETWORK in settings.checks else None
    if BASIC in settings.checks:
        failed = basic.failures(environment)
        try:
            measured = basic.measurements(store, key)
        except StoreError as error:
            logger.warning("preflight: nothing is compared with other members: %s", error)
    if speed is not None:
        measured[BANDWIDTH] = speed
    if settings.command:
        found = command.run(settings.command, settings.timeout)
        if found is not None:
            failed[_COMMAND] = found
    return PreflightValue(failed=failed, measured=measured, machine=_machine())


def _machine() -> str:
    """The same for all containers of a machine, until it boots again."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _exchange(
    store: Store, keys: Keys, me: str, own: PreflightValue, least: int, settings: PreflightSettings
) -> dict[str, PreflightValue]:
    """The reports of all members, this one included. Waits for those of others if this member fails a check."""
    deadline = time.monotonic() + WAIT_SECONDS + (settings.timeout if settings.command else 0.0)
    reports = {me: own}
    try:
        store.put(keys.preflight(me), own.to_json(), timeout=_STORE_SECONDS)
        while True:
            reports = {**read_reports(store, keys), me: own}
            if not waits(me, reports, least) or time.monotonic() > deadline:
                return reports
            time.sleep(_PAUSE)
    except StoreError as error:
        logger.warning("preflight: the reports of other members are not known: %s", error)
        return reports
