"""Which versions of etcd the operator uses where each run has a user."""

from __future__ import annotations

import json

import pytest
from elasticjob_operator.etcd.responses import check_keeps_users_apart
from elasticjob_runtime.etcd import Denied

APART = ["3.4.44", "3.5.30", "3.5.33", "3.6.11", "3.6.12-rc.1", "3.7.0", "3.8.0-alpha.0", "4.0", "10.0.0"]
NOT_APART = ["3.4.23", "3.4.43", "3.5.0", "3.5.29", "3.6.8", "3.6.10", "3.6", "3.6.", "3.4.0"]


@pytest.mark.parametrize("version", APART)
def test_versions_that_check_nested_transactions_are_used(version: str) -> None:
    check_keeps_users_apart(json.dumps({"etcdserver": version}).encode())


@pytest.mark.parametrize("version", NOT_APART)
def test_others_are_refused_with_the_version_and_the_fixed_ones(version: str) -> None:
    shown = version if version.count(".") == 2 and not version.endswith(".") else "3.6.0"
    with pytest.raises(Denied, match=rf"it is etcd {shown}, .*upgrade it to 3\.4\.44, 3\.5\.30, 3\.6\.11 or newer"):
        check_keeps_users_apart(json.dumps({"etcdserver": version}).encode())
