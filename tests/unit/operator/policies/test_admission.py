from __future__ import annotations

import pytest
from elasticjob_api import Condition, ConditionStatus, ConditionType, Reason, Status
from elasticjob_operator.policies.admission import acceptance
from elasticjob_operator.state import Admission, Pod

from tests.unit.operator.builders import NOW, at, make_job, make_pod, make_status
from tests.unit.operator.tables import table

HASH = make_pod().template_hash
ACCEPTED = make_status(ConditionType.ACCEPTED)


def answer(rejection: str = "", *, invalid: bool = False, seconds: float = 0, template_hash: str = HASH) -> Admission:
    return Admission(template_hash=template_hash, rejection=rejection, invalid=invalid, at=at(seconds))


@table(
    "generation, status, pods, admission, accepted, ask, again",
    {
        "new: ask": (1, None, [], None, None, True, None),
        "the server would take it": (1, None, [], answer(), True, False, None),
        "refused: not asked all the time": (1, None, [], answer("no such field", invalid=True), False, False, 30),
        "refused a while ago: ask again": (1, None, [], answer("no quota", seconds=-30), False, True, None),
        "the template was mended: ask at once": (1, None, [], answer("no", template_hash="old"), None, True, None),
        "operator restarted: status knows": (1, ACCEPTED, [], None, True, False, None),
        "new generation: ask": (2, ACCEPTED, [], None, None, True, None),
        "scaled while a pod is there: quota in use is no fault": (2, ACCEPTED, [make_pod()], None, True, False, None),
    },
)
def test_when_a_job_is_accepted(
    generation: int,
    status: Status | None,
    pods: list[Pod],
    admission: Admission | None,
    accepted: bool | None,
    ask: bool,
    again: float | None,
) -> None:
    found = acceptance(make_job(generation=generation, status=status), HASH, pods, admission, NOW)
    assert (found.status, found.dry_run) == (accepted, ask)
    assert found.requeue_at == (at(again) if again is not None else None)


@pytest.mark.parametrize(("invalid", "reason"), [(True, Reason.INVALID_POD_TEMPLATE), (False, Reason.POD_REJECTED)])
def test_the_message_quotes_the_api_server(invalid: bool, reason: Reason) -> None:
    found = acceptance(make_job(), HASH, [], answer("spec.containers[0].image: Required value", invalid=invalid), NOW)
    assert found.reason is reason
    assert "spec.containers[0].image: Required value" in found.message


def test_a_rejected_template_is_tried_again_after_a_restart_of_the_operator() -> None:
    refused = Condition(
        type="Accepted",
        status=ConditionStatus.FALSE,
        reason="InvalidPodTemplate",
        observed_generation=1,
        last_transition_time=NOW,
    )
    assert acceptance(make_job(status=Status(conditions=(refused,))), HASH, [], None, NOW).dry_run
