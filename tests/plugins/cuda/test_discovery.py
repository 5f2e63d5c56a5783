"""What a probe says, with drivers of every kind; and that it stays light."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

import baseboard_cuda
from baseboard.contract import BackendUnavailable
from baseboard_cuda.probing.devices import Surroundings, find_devices
from baseboard_cuda.probing.driver import DriverError, load_library
from baseboard_cuda.probing.nvml import read_release
from baseboard_cuda.probing.software import Software, installed_software, torch_cuda
from plugins.cuda.fake_driver import FakeDriver, FakeGpu

FITTING = Software(torch=True, torch_cuda=(12, 8), triton=True)


def probe(driver, software=FITTING, release="570.86.15", **environment):
    def library():
        if isinstance(driver, Exception):
            raise driver
        return driver

    return find_devices(Surroundings(environment, library, lambda: software, lambda: release))


def reason(*args, **kwargs) -> str:
    (device,) = probe(*args, **kwargs)
    assert not device.available
    assert device.backend == "cuda"
    assert device.reason is not None
    return device.reason


def test_gpus_are_told_as_the_driver_has_them() -> None:
    small = FakeGpu("NVIDIA GB10", (12, 1), 120_000_000_000, 48, integrated=True)
    first, second = probe(FakeDriver([FakeGpu(), small]))
    assert (first.name, first.arch, first.total_memory) == ("NVIDIA H100 80GB HBM3", "sm_90", 85_000_000_000)
    assert (first.index, first.available, first.reason, first.device_type) == (0, True, None, "cuda")
    assert first.details["CUDA of the driver"] == "12.8"
    assert first.details["driver"] == "570.86.15"
    assert (second.index, second.arch, second.available) == (1, "sm_121", True)
    assert second.details["memory"] == "shared with the host"
    assert first.priority > 50


def test_no_driver() -> None:
    assert "no NVIDIA driver" in reason(
        DriverError("there is no NVIDIA driver: libcuda.so.1 is not on the library path")
    )


def test_a_driver_that_lacks_a_function_is_a_reason() -> None:
    class Ancient(FakeDriver):
        @property
        def cuDeviceTotalMem_v2(self):
            raise AttributeError("undefined symbol: cuDeviceTotalMem_v2")

    assert "cuDeviceTotalMem_v2" in reason(Ancient())


@pytest.mark.parametrize(
    ("code", "said"),
    [(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), (803, "restart"), (3, "spawn"), (999, "error 999"), (7, "error 7")],
)
def test_a_driver_that_does_not_start(code, said) -> None:
    assert said in reason(FakeDriver(init=code))


def test_a_driver_that_fails_later() -> None:
    assert "cuDeviceGetCount failed with error 42" in reason(FakeDriver(count=42))


def test_no_gpu_and_hidden_gpus() -> None:
    assert reason(FakeDriver([])) == "the NVIDIA driver sees no GPU"
    # So the driver itself says that it was left nothing: CUDA_ERROR_NO_DEVICE.
    assert "CUDA_VISIBLE_DEVICES='' shows none" in reason(FakeDriver(init=100), CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize(
    ("version", "built_for", "fits"),
    [
        (12080, (12, 8), True),
        (12000, (12, 8), True),
        (13000, (12, 8), True),
        (12080, (13, 0), False),
        (11080, (12, 6), False),
    ],
)
def test_a_driver_runs_every_toolkit_of_its_major_version_and_older(version, built_for, fits) -> None:
    (device,) = probe(FakeDriver(version=version), Software(True, built_for, True))
    assert device.available is fits
    if not fits:
        assert f"{built_for[0]}.{built_for[1]}" in device.reason
        assert f"{version // 1000}.{version % 1000 // 10}" in device.reason
        assert "update the driver" in device.reason


@pytest.mark.parametrize(
    ("software", "said"),
    [
        (Software(False, None, True), "torch is not installed"),
        (Software(True, None, True), "built without CUDA"),
        (Software(True, (12, 8), False), "triton is not installed"),
    ],
)
def test_missing_software(software, said) -> None:
    assert said in reason(FakeDriver(), software)


@pytest.mark.parametrize(("capability", "fits"), [((7, 0), False), ((7, 2), False), ((7, 5), True), ((8, 9), True)])
def test_the_oldest_gpu_is_turing(capability, fits) -> None:
    old, new = probe(FakeDriver([FakeGpu(capability=capability), FakeGpu()]))
    assert new.available
    assert old.available is fits
    if not fits:
        assert f"{capability[0]}.{capability[1]} is below 7.5" in old.reason


def test_the_interpreter_is_a_device_only_where_it_is_on() -> None:
    assert [d.device_type for d in probe(FakeDriver())] == ["cuda"]
    gpu, interpreter = probe(FakeDriver(), TRITON_INTERPRET="1")
    assert gpu.available
    assert (interpreter.device_type, interpreter.available) == ("cpu", True)
    assert interpreter.priority < 0
    _, without = probe(FakeDriver(), Software(True, None, False), TRITON_INTERPRET="1")
    assert not without.available


def test_this_machine_says_something() -> None:
    for device in baseboard_cuda.probe_devices():
        assert device.available == (device.reason is None)


def test_an_unavailable_device_is_not_opened() -> None:
    (device,) = probe(DriverError("there is no NVIDIA driver"))
    with pytest.raises(BackendUnavailable, match="there is no NVIDIA driver"):
        baseboard_cuda.open_backend(device, {})


def test_the_driver_is_looked_for_by_both_names(monkeypatch) -> None:
    tried = []

    def load(name):
        tried.append(name)
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(DriverError, match="there is no NVIDIA driver"):
        load_library()
    assert tried == ["libcuda.so.1", "libcuda.so"]


class FakeNvml:
    def __init__(self, init: int = 0, version: int = 0) -> None:
        self.init, self.version, self.open = init, version, False

    def nvmlInit_v2(self) -> int:
        self.open = self.init == 0
        return self.init

    def nvmlSystemGetDriverVersion(self, text, length) -> int:
        assert length == len(text)
        text.value = b"570.86.15"
        return self.version

    def nvmlShutdown(self) -> int:
        self.open = False
        return 0


@pytest.mark.parametrize(("init", "version", "said"), [(0, 0, "570.86.15"), (18, 0, None), (0, 3, None)])
def test_the_release_is_nvmls(init, version, said) -> None:
    nvml = FakeNvml(init, version)
    assert read_release(nvml) == said
    assert not nvml.open


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("cuda: Optional[str] = '12.8'\n", (12, 8)),
        ('__version__ = "2.13.0"\ncuda = "13.0"\nhip = None\n', (13, 0)),
        ("cuda: Optional[str] = None\n", None),
        ("", None),
    ],
)
def test_what_torch_was_built_for(tmp_path, text, version) -> None:
    (tmp_path / "version.py").write_text(text)
    assert torch_cuda(tmp_path / "version.py") == version
    assert torch_cuda(tmp_path / "missing.py") is None


def test_what_is_installed_equals_what_torch_itself_says() -> None:
    import torch

    cuda = torch.version.cuda
    expected = None if cuda is None else tuple(int(part) for part in cuda.split("."))[:2]
    assert installed_software().torch_cuda == expected


def test_a_probe_loads_neither_torch_nor_triton() -> None:
    code = (
        "import sys, baseboard_cuda; devices = baseboard_cuda.probe_devices(); "
        "assert all(d.available or d.reason for d in devices) and devices; "
        "print(sorted({'torch', 'triton', 'baseboard_cuda.backend'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
