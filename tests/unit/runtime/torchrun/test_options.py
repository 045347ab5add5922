"""--rdzv-conf, --rdzv-endpoint and the environment of a pod, as torch passes them on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from elasticjob_runtime.cli.rendezvous_flags import connection, open_store
from elasticjob_runtime.cli.usage import UsageError
from elasticjob_runtime.contract import DEFAULT_PREFIX
from elasticjob_runtime.etcd import Endpoint
from elasticjob_runtime.rendezvous.config import MemberConfig
from elasticjob_runtime.torchrun.options import UNCOUNTED, member_config, read_conf


def config(conf: dict[str, Any] | None = None, **options: Any) -> MemberConfig:
    defaults = {"run_id": "run", "least": 2, "most": 4, "local_addr": None, "environment": {}}
    return member_config(read_conf(conf or {}), endpoints=[Endpoint("127.0.0.1")], **{**defaults, **options})


def test_rdzv_conf_keys_are_split_into_settings_and_connection() -> None:
    conf = read_conf(
        {"prefix": "/jobs", "lease_ttl": "3", "join_timeout": 60, "user": "me", "password": "a,b=c", "timeout": 900}
    )
    assert (conf.prefix, conf.lease_ttl, conf.join_timeout) == ("/jobs", 3.0, 60.0)
    assert conf.connection == {"user": "me", "password": "a,b=c"}, "a password may have commas if a program passes it"


def test_keys_of_torchs_own_backends_are_accepted() -> None:
    conf = {"is_host": "1", "store_type": "tcp", "use_libuv": False, "last_call_timeout": "1", "read_timeout": 5}
    assert read_conf({**conf, "keep_alive_interval": "1", "keep_alive_max_attempt": "2"}).prefix == DEFAULT_PREFIX


WRONG = {
    "unknown key": ("127.0.0.1:1", {"lease-ttl": "3"}, r"unknown key 'lease-ttl' \(did you mean lease_ttl\?\)"),
    "not seconds": ("127.0.0.1:1", {"join_timeout": "soon"}, "join_timeout=soon is not a number of seconds"),
    "no endpoint": ("", {}, "needs --rdzv-endpoint=HOST:PORT"),
    "missing CA file": ("https://127.0.0.1:1", {"cacert": "/nowhere.pem"}, "cannot be used as a CA"),
    "user without a password": ("127.0.0.1:1", {"user": "me"}, "give either password or password_file"),
    "not a port": ("127.0.0.1:port", {}, "has no usable port"),
}


@pytest.mark.parametrize(("endpoint", "conf", "sentence"), WRONG.values(), ids=WRONG)
def test_an_invalid_setting_gives_a_usage_error(endpoint: str, conf: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        open_store(endpoint, read_conf(conf), {})


def test_name_and_address_come_from_the_pods_environment() -> None:
    pod = config(environment={"ELASTICJOB_MEMBER_ID": "digits-worker-0", "ELASTICJOB_ADDRESS": "10.0.0.7"})
    assert (pod.settings.me, pod.address) == ("digits-worker-0", "10.0.0.7")
    assert (pod.settings.min, pod.settings.max, pod.settings.nproc) == (2, 4, UNCOUNTED)
    assert pod.keys.plan == f"{DEFAULT_PREFIX}/run/plan"


def test_local_addr_takes_precedence_and_the_route_to_etcd_is_the_fallback() -> None:
    assert config(local_addr="10.0.0.8", environment={"ELASTICJOB_ADDRESS": "10.0.0.7"}).address == "10.0.0.8"
    assert config(least=1, most=1).address == "127.0.0.1"


def test_every_start_is_a_new_incarnation() -> None:
    assert config().settings.incarnation != config().settings.incarnation
    assert config().settings.me != config().settings.me, "two agents on one host without names"


def test_a_missing_run_id_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config({"prefix": "/mine"}, run_id="none")
    assert "no --rdzv-id" in caplog.text


def test_a_missing_run_id_on_several_machines_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"no --rdzv-id: .* --rdzv-conf=prefix=/NAME"):
        config(run_id="none")


@pytest.mark.parametrize("run_id", ["team/job1", "/", "", " "])
def test_a_run_id_with_a_slash_or_without_a_name_is_rejected(run_id: str) -> None:
    with pytest.raises(UsageError, match="must be a name without a slash"):
        config(run_id=run_id)


def test_ports_are_taken_from_a_range() -> None:
    assert str(config({"port_range": "30000-30019"}).port_range) == "30000-30019"
    with pytest.raises(UsageError, match="--rdzv-conf: port_range: '30000' is not a range of TCP ports"):
        config({"port_range": "30000"})


def test_torchrun_with_another_backend_imports_only_the_entry_point() -> None:
    """torch calls every plug-in's entry point at every start."""
    script = (
        "import sys; from elasticjob_runtime.torchrun import rendezvous_handlers, create_handler;"
        "assert rendezvous_handlers() is create_handler;"
        "print([name for name in sys.modules if name.startswith(('torch', 'elasticjob_runtime.'))])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "['elasticjob_runtime.torchrun']"


POD = {
    "PET_RDZV_ENDPOINT": "https://digits-etcd.ml.svc:2379",
    "PET_RDZV_CONF": "cacert=/c/ca.crt,cert=/c/worker.crt,key=/c/worker.key,lease_ttl=3",
}
CERTIFICATES = {"cacert": "/c/ca.crt", "cert": "/c/worker.crt", "key": "/c/worker.key"}


MOUNTED = {**POD, "PET_RDZV_CONF": "credentials=/c"}
OURS, OTHER = POD["PET_RDZV_ENDPOINT"], "https://etcd:2379"
USER = {"user": "me", "password": "x"}


@pytest.mark.parametrize(
    ("pod", "endpoint", "conf", "expected"),
    [
        pytest.param(POD, OURS, {}, CERTIFICATES, id="a --rdzv-conf without TLS keys"),
        pytest.param(POD, OURS, USER, {**CERTIFICATES, **USER}, id="other keys are kept"),
        pytest.param(POD, OURS, {"ca_cert": "/mine"}, {"ca_cert": "/mine"}, id="the command's own CA"),
        pytest.param(POD, OTHER, {}, {}, id="another endpoint gets no certificate of the job"),
        pytest.param(MOUNTED, OURS, {"lease_ttl": 3}, {"credentials": "/c"}, id="a --rdzv-conf without credentials"),
        pytest.param(MOUNTED, OURS, {"credentials": "/mine"}, {"credentials": "/mine"}, id="the command's own folder"),
        pytest.param(MOUNTED, OURS, {"cert": "/mine"}, {"cert": "/mine"}, id="the command's own certificate"),
        pytest.param(MOUNTED, OTHER, {}, {}, id="another endpoint gets no credentials of the job"),
    ],
)
def test_the_pods_credentials_apply_whatever_rdzv_conf_the_command_has(
    pod: dict[str, str], endpoint: str, conf: dict[str, str], expected: dict[str, str]
) -> None:
    """A --rdzv-conf on the command line replaces PET_RDZV_CONF as a whole."""
    assert connection(read_conf(conf), endpoint, pod) == expected
