"""The store for trying things out, from the command line."""

from __future__ import annotations

import subprocess
import sys

from elasticjob_runtime.etcd import connect

COMMAND = [sys.executable, "-m", "hack.embedded_etcd.server"]


def test_a_person_without_an_etcd_can_start_one() -> None:
    with subprocess.Popen([*COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            endpoint = next(word for word in server.stdout.readline().replace(",", "").split() if ":" in word)
            store = connect(endpoint)
            store.put("/a", "1")
            found = store.get("/a")
            store.close()
        finally:
            server.kill()
    assert found is not None
    assert found.value == "1"


def test_a_port_in_use_gets_one_sentence() -> None:
    with subprocess.Popen([*COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().partition("127.0.0.1:")[2].partition(",")[0]
            second = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, timeout=20, check=False)
        finally:
            server.kill()
    assert second.returncode == 1
    assert second.stderr.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert "Traceback" not in second.stderr
