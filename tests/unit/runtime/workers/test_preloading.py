"""Which modules a zygote imports."""

from __future__ import annotations

from elasticjob_runtime.workers.preloading import Modules
from elasticjob_runtime.workers.zygote_main import open_device


def test_what_the_script_imports_comes_after_what_was_asked_for() -> None:
    modules = Modules(base=["torch"], asked=["mine"])
    assert modules.names() == ["torch", "mine"]
    assert modules.learn(["torch", "pandas", "mine", "pandas.core"])
    assert modules.names() == ["torch", "mine", "?pandas", "?pandas.core"]
    assert not modules.learn(["torch", "pandas", "mine", "pandas.core"]), "nothing new"


def test_an_unfit_package_is_left_out_with_its_modules() -> None:
    modules = Modules(base=["torch"], asked=["mine"], learned=["pandas", "grpc", "grpc.aio", "grpcio"])
    assert modules.leave_out("grpc") is False
    assert modules.names() == ["torch", "mine", "?pandas", "?grpcio"]
    assert modules.leave_out("mine") is True
    assert modules.names() == ["torch", "?pandas", "?grpcio"]


def test_a_module_of_a_package_may_be_unfit_alone() -> None:
    modules = Modules(base=["torch"], learned=["grpc", "grpc.aio", "grpc.beta"])
    modules.leave_out("grpc.aio")
    assert modules.names() == ["torch", "?grpc", "?grpc.beta"]


def test_nothing_can_be_left_out_twice_or_of_the_base() -> None:
    modules = Modules(base=["torch"], learned=["grpc"])
    assert modules.can_do_without("grpc")
    assert not modules.can_do_without("torch")
    modules.leave_out("grpc")
    assert not modules.can_do_without("grpc")


def test_an_open_gpu_driver_is_seen() -> None:
    assert open_device(["pipe:[1]", "/dev/nvidiactl", "/dev/nvidia0"]) == "", "NVML"
    assert open_device(["/dev/nvidia0", "/dev/nvidia-uvm"]) == "/dev/nvidia-uvm"
    assert open_device(["/dev/kfd"]) == "/dev/kfd"
