"""The outcome of a job whose workers failed under torchrun, from what torch's agent reports."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elasticjob_runtime.contract import MAX_RESTARTS_EXCEEDED, FailureValue, OutcomeState, OutcomeValue


def failed_outcome(me: str, round_number: int, rank: int, failure: ProcessFailure) -> OutcomeValue:
    recorded = FailureValue(
        member=me,
        round=round_number,
        rank=rank,
        local_rank=failure.local_rank,
        exit_code=failure.exitcode,
        reason="Signal" if failure.exitcode < 0 else "ApplicationError",
        message=_message(failure),
        traceback=_traceback(failure),
        host=socket.gethostname(),
        time=float(failure.timestamp or 0),
    )
    message = f"rank {rank} on {me} failed: {recorded.message}; torchrun has no restarts left (--max-restarts)"
    values = {field: getattr(recorded, field) for field in FailureValue.__dataclass_fields__}
    return OutcomeValue(
        state=OutcomeState.FAILED, reason=MAX_RESTARTS_EXCEEDED, message=message, round=round_number, failure=values
    )


def _recorded_error(failure: ProcessFailure) -> Mapping[str, Any]:
    """Returns what @record wrote in the worker; empty: nothing."""
    message = failure.error_file_data.get("message")
    return message if isinstance(message, dict) else {}


def _message(failure: ProcessFailure) -> str:
    """Returns one line. If the worker wrote nothing, torch's message is only a link to its documentation, so the exit
    code is used."""
    if recorded := _recorded_error(failure):
        return str(recorded.get("message", "")).strip().partition("\n")[0][:500]
    return str(failure.message) if failure.exitcode < 0 else f"exit code {failure.exitcode}"


def _traceback(failure: ProcessFailure) -> str:
    extra = _recorded_error(failure).get("extraInfo")
    return str(extra.get("py_callstack", ""))[-4096:] if isinstance(extra, dict) else ""
