"""Put into one pod as `sitecustomize`: the clock of every Python process there is CHAOS_CLOCK_AHEAD seconds fast.

Linux has no namespace for the time of day, and containers may not set it: this is what the agent and its workers see of
such a clock.
"""

import os
import time

_ahead = float(os.environ.get("CHAOS_CLOCK_AHEAD", "0"))
_worker = os.environ.get("CHAOS_CLOCK_WORKER", "")
if _ahead and os.environ.get("ELASTICJOB_MEMBER_ID", "").startswith(f"{_worker}-"):
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + _ahead
    time.time_ns = lambda: _time_ns() + int(_ahead * 1e9)
