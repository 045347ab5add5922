"""A package in torch's place, for scripts that do not use torch: a zygote imports the real one in several seconds."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

FILES = {
    "torch/__init__.py": """
from torch import cuda, distributed
class Generator:
    def seed(self): pass
default_generator = Generator()
""",
    "torch/cuda.py": "started = False\ndef is_initialized(): return started\n",
    "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer\n",
    "torch/optim/optimizer.py": """
before, after = [], []
register_optimizer_step_pre_hook, register_optimizer_step_post_hook = before.append, after.append
class Optimizer:
    def step(self):
        for hook in before: hook(self, (), {})
        for hook in after: hook(self, (), {})
""",
    "torch/distributed.py": """
import socket
class TCPStore:
    def __init__(self, host, port, **_):
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.server.bind((host, port)); self.server.listen()
        except OSError as error:
            raise RuntimeError(str(error)) from error
""",
}


def write_small_torch(folder: pathlib.Path) -> pathlib.Path:
    """Returns the directory to put on PYTHONPATH."""
    return write_modules(folder / "small-torch", FILES)


def write_modules(packages: pathlib.Path, modules: Mapping[str, str]) -> pathlib.Path:
    """Their texts, by path in `packages`, which is returned."""
    for name, text in modules.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    return packages
