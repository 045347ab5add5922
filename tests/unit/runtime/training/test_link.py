"""What a worker process tells an agent that is busy."""

from __future__ import annotations

import pathlib
import socket
import threading

import pytest
from elasticjob_runtime.training.link import AgentLink

pytestmark = pytest.mark.timeout(30)


def test_a_worker_process_never_waits_for_an_agent_that_reads_nothing(tmp_path: pathlib.Path) -> None:
    """Nor takes it for dead, while another thread waits for plans."""
    path = str(tmp_path / "agent.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        link = AgentLink(path)
        agent, _ = listener.accept()
        waits = threading.Thread(target=link.next_plan, args=(20.0,), daemon=True)
        waits.start()
        for number in range(2000):
            link.tell({"type": "plan-state", "number": number})
        agent.sendall(b'{"type": "plan"}')
        waits.join()
        link.close()
        agent.close()
