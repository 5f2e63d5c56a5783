"""The light probe: what it says is missing, without importing any of it. Runs everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baseboard_ascend_npu import driver, installation
from baseboard_ascend_npu import probe as probing
from baseboard_ascend_npu.chips import chip
from baseboard_ascend_npu.driver import Driver, DriverMissing
from baseboard_ascend_npu.installation import Installation

SOURCES = Path(installation.__file__).parents[1]
WORKING = Installation("2.13.0+cpu", None, "2.13.0", "8.5.0")


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        ((None, None, None, None), "torch is not installed: install its CPU build, then the torch_npu"),
        (("2.13.0+cpu", None, None, None), "torch_npu is not installed: pip install torch_npu==2.13.0"),
        (
            ("2.14.1", "CUDA 13.0", "2.14.0", None),
            "torch 2.14.1 is built for CUDA 13.0, and torch_npu 2.14.0 works with the CPU build alone: "
            "install the CPU build of torch 2.14.0",
        ),
        (
            ("2.14.1+cpu", None, "2.13.0", None),
            "torch_npu 2.13.0 works with torch 2.13.0 alone, but torch 2.14.1+cpu is installed: "
            "pip install torch_npu==2.14.1, or the CPU build of torch 2.13.0",
        ),
        (
            ("2.13.0+cpu", None, "2.13.0", "8.3.RC1"),
            "CANN 8.3.RC1 is too old: torch_npu 2.13.0 is made for CANN 8.5 or newer; upgrade CANN",
        ),
        (("2.8.0", None, "2.8.0", "8.1.RC1"), "CANN 8.1.RC1 is too old: torch_npu 2.8.0 is made for CANN 8.3 or newer"),
    ],
)
def test_obstacles(installed: tuple[Any, ...], reason: str) -> None:
    assert next(Installation(*installed).obstacles()).startswith(reason)


@pytest.mark.parametrize(
    "installed",
    [
        WORKING,
        Installation("2.13.0+cpu", None, "2.13.0.post2", None),
        Installation("2.12.0", None, "2.12.0rc1", "8.5.0"),
        Installation("2.8.0+cpu", None, "2.8.0.post2", "8.3.RC1"),
        Installation("2.13.0", None, "2.13.0", "9.0.0.alpha003"),
    ],
)
def test_pairs_that_work(installed: Installation) -> None:
    assert list(installed.obstacles()) == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the probe finds: set by calling it."""

    def answers(installed: Installation, found: Driver | Exception) -> None:
        def ask() -> Driver:
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(probing, "read_installation", lambda _: installed)
        monkeypatch.setattr(probing, "ask_driver", ask)
        monkeypatch.delitem(sys.modules, "torch_npu", raising=False)

    return answers


def test_devices(asked: Any) -> None:
    asked(WORKING, Driver(2, "Ascend910_9391"))
    environment: dict[str, str] = {}
    devices = probing.find_npus(environment)
    assert [(device.index, device.available, device.name) for device in devices] == [
        (0, True, "Ascend910_9391 (Atlas A3)"),
        (1, True, "Ascend910_9391 (Atlas A3)"),
    ]
    assert {device.details["CANN"] for device in devices} == {"8.5.0"}
    assert environment == {}


@pytest.mark.parametrize(
    ("installed", "found", "reason", "switched_off"),
    [
        (WORKING, DriverMissing("libascendcl.so: no such file"), "CANN is not installed or not on the library path: "
         "libascendcl.so: no such file; source CANN's set_env.sh", True),
        (Installation("2.13.0+cpu", None, None, None), Driver(1, "Ascend910B2"), "torch_npu is not installed", False),
        (Installation("2.14.1", "CUDA 13.0", "2.14.0", None), Driver(1, "Ascend910B2"), "torch 2.14.1 is built", True),
        (WORKING, Driver(1, "Ascend310P3"), "Ascend310P3 (Atlas 300I inference series) is not supported", False),
        (WORKING, Driver(1, "Ascend950PR_9579"), "Ascend950PR_9579 (Atlas A5) is not supported", False),
        (WORKING, Driver(1, "Kirin"), "Kirin (unknown to this plugin) is not supported", False),
    ],
)  # fmt: skip
def test_what_is_missing(
    asked: Any, installed: Installation, found: Driver | Exception, reason: str, switched_off: bool
) -> None:
    """Where importing torch_npu would fail it is hidden from torch and others, and only there."""
    asked(installed, found)
    environment: dict[str, str] = {}
    (device,) = probing.find_npus(environment)
    assert not device.available
    assert device.reason is not None
    assert device.reason.startswith(reason)
    assert environment == ({probing.AUTOLOAD: "0"} if switched_off else {})
    assert ("torch_npu" in sys.modules) == switched_off
    sys.modules.pop("torch_npu", None)


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        (None, "the driver sees no NPU: check the driver with npu-smi info"),
        ("", "ASCEND_RT_VISIBLE_DEVICES is empty, which hides all NPUs: unset it, or name some, as 0,1"),
        ("9", "ASCEND_RT_VISIBLE_DEVICES=9 lets no NPU through"),
    ],
)
def test_no_device(asked: Any, visible: str | None, reason: str) -> None:
    asked(WORKING, Driver(0, "Ascend910B2"))
    (device,) = probing.find_npus({} if visible is None else {probing.VISIBLE: visible})
    assert device.reason is not None
    assert device.reason.startswith(reason)


@pytest.mark.parametrize(
    ("soc", "family"),
    [
        ("Ascend910B2", "Atlas A2"),
        ("Ascend910B4-1", "Atlas A2"),
        ("Ascend910_9391", "Atlas A3"),
        ("Ascend310P3", "Atlas 300I inference series"),
        ("Ascend910A", "Atlas 300T training series"),
        ("Ascend910ProB", "Atlas 300T training series"),
        ("Ascend950PR_9579", "Atlas A5"),
    ],
)
def test_families(soc: str, family: str) -> None:
    assert chip(soc).family == family
    assert (chip(soc).obstacle is None) == (family in {"Atlas A2", "Atlas A3"})


def test_the_version_of_cann_is_read_from_its_own_record(tmp_path: Path) -> None:
    assert installation.read_installation({"ASCEND_HOME_PATH": str(tmp_path)}).cann is None
    folder = tmp_path / "x86_64-linux"
    folder.mkdir()
    (folder / "ascend_toolkit_install.info").write_text(
        "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=x86_64\n"
    )
    assert installation.read_installation({"ASCEND_HOME_PATH": str(tmp_path)}).cann == "8.5.0"


def test_without_cann_the_driver_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libascendcl-that-nobody-has.so")
    with pytest.raises(DriverMissing, match="libascendcl-that-nobody-has"):
        driver.ask_driver()


def pretend(folder: Path, name: str, version: str, text: str = "") -> None:
    """A package of that name and version, found but never to be imported."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / name / "version.py").write_text(text)
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


def in_a_fresh_process(folder: Path, code: str) -> str:
    path = os.pathsep.join([str(folder), str(SOURCES)])
    environment = {**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": "", "ASCEND_HOME_PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


PROBE = "import baseboard_ascend_npu as p; d, = p.probe_devices(); print(d.reason)"


@pytest.mark.parametrize(
    ("build", "version", "reason"),
    [
        ("cuda: str | None = '13.0'\nhip: str | None = None\n", "2.13.0", "torch 2.13.0 is built for CUDA 13.0"),
        ("cuda = None\nhip: Optional[str] = '6.4'\n", "2.13.0+rocm", "torch 2.13.0+rocm is built for ROCm 6.4"),
        ("cuda: str | None = None\nxpu = '2025.3'\n", "2.13.0", "torch 2.13.0 is built for XPU 2025.3"),
        ("cuda: str | None = None\n", "2.14.1", "torch_npu 2.13.0 works with torch 2.13.0 alone, but torch 2.14.1"),
        ("cuda: str | None = None\n", "2.13.0+cpu", "CANN is not installed or not on the library path: libascendcl.so"),
    ],
)
def test_builds_of_torch_are_told_apart_on_disk(tmp_path: Path, build: str, version: str, reason: str) -> None:
    pretend(tmp_path, "torch", version, build)
    pretend(tmp_path, "torch_npu", "2.13.0")
    assert in_a_fresh_process(tmp_path, PROBE).startswith(reason)


def test_the_light_module_imports_no_torch(tmp_path: Path) -> None:
    heavy = "[m for m in ('torch', 'torch_npu', 'numpy.testing', 'transformers') if sys.modules.get(m)]"
    code = f"import sys, baseboard_ascend_npu as p; p.probe_devices(); print({heavy})"
    assert in_a_fresh_process(tmp_path, code) == "[]"
