"""The fencing token: later groups have larger ones."""

from __future__ import annotations

import itertools

import pytest
from elasticjob_runtime.contract import Fence
from hypothesis import given
from hypothesis import strategies as st

part = st.integers(0, 10**18 - 1)


def test_a_later_run_has_a_larger_token_than_any_round_before() -> None:
    tokens = [Fence(0, 0, 9), Fence(1, 0, 10), Fence(1, 2, 1), Fence(1, 2, 10), Fence(2, 0, 1)]
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))


@given(st.builds(Fence, part, part, part))
def test_a_token_survives_a_round_trip_as_text(token: Fence) -> None:
    assert Fence.parse(str(token)) == token


@pytest.mark.parametrize("text", ["", "1.2", "1.2.3.4", "1.2.x", "-1.2.3", "1.2.3\n", " 1.2.3", "1" * 30 + ".1.1"])
def test_invalid_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Fence.parse(text)
