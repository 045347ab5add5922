"""When a zygote learns: soon after a script has imported something new, and less and less often. Pure bookkeeping;
times are monotonic, s.

A script's imports come one after the other, over seconds. The first of them are learned while it still imports the
last: then a crash in its first minute finds them. Each further time costs a fork of the zygote and of every parked
worker, so the pauses grow.
"""

from __future__ import annotations

from elasticjob_runtime.workers.zygote.preload import Modules, Verdicts

QUIET_SECONDS = 1.5
"""s without a new import, after which what came so far is learned."""

LONGEST_WAIT = 3.0
"""Times QUIET_SECONDS: imports that never pause are learned after so long."""

LONGEST_PAUSE = 300.0
"""s between two times, at most."""


class Learning:
    """Of one launcher."""

    def __init__(self, modules: Modules, *, on: bool, quiet: float | None = None) -> None:
        """`on` False: nothing is ever learned. `quiet`: instead of QUIET_SECONDS."""
        self._modules = modules
        self._on = on
        self._quiet = QUIET_SECONDS if quiet is None else quiet
        self._pause = self._quiet
        self._first: float | None = None
        self._last = 0.0
        self._not_before = 0.0
        self._in_work: list[str] = []

    @property
    def due(self) -> float | None:
        """When `take` has something; None: nothing is known that has not been tried."""
        if self._first is None or not self._modules.to_try():
            return None
        return max(min(self._last + self._quiet, self._first + self._quiet * LONGEST_WAIT), self._not_before)

    def imported(self, name: str, now: float) -> None:
        """A script imports it."""
        if self._on and self._modules.learn([name]):
            self._first = now if self._first is None else self._first
            self._last = now

    def told(self, known: Verdicts) -> None:
        """Somebody else has found out. Tried at once."""
        if self._on:
            self._modules.learn(known.known())
            self._modules.verdicts.late.update(known.late)
            self._first = self._last = float("-inf")

    def take(self, now: float) -> list[str]:
        """What is to be tried now."""
        if self.due is None or now < self.due:
            return []
        self._first = None
        self._in_work = self._modules.to_try()
        return list(self._in_work)

    def done(self, now: float, *, anew: bool) -> None:
        """What was taken has been tried. `anew`: no, the zygote is a fresh one, which has to try everything."""
        if anew:
            self._modules.forget_trials()
            self._first = self._last = float("-inf")
        else:
            self._modules.tried.update(self._in_work)
            self._not_before = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._in_work = []
        if self._modules.to_try() and self._first is None:
            self._first = self._last = now
