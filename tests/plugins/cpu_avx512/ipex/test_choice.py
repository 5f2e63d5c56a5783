"""Choosing IPEX's kernels, and being told why they cannot be had."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import baseboard_cpu_avx512
from baseboard.contract import BackendUnavailable
from baseboard_cpu_avx512 import settings
from baseboard_cpu_avx512.ipex import installation
from baseboard_cpu_avx512.ipex.installation import find_library, load_operators, obstacle
from baseboard_cpu_avx512.kernels import OwnKernels
from plugins.cpu_avx512.conftest import LEVELS, open_at

WAY_OUT = "pip install torch==2.8.0 intel-extension-for-pytorch==2.8.0 .*, or leave the option kernels out"
LIBRARY = "intel_extension_for_pytorch/lib/libintel-ext-pt-cpu.so"


def install(folder: Path, name: str, version: str, *files: str) -> None:
    """What a package's metadata would be, and its files with nonsense in them."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"\x7fELF of another machine")


def packages(folder: Path, monkeypatch: pytest.MonkeyPatch, ipex: str, torch: str, *files: str) -> None:
    install(folder, "intel_extension_for_pytorch", ipex, *files)
    install(folder, "torch", torch)
    monkeypatch.syspath_prepend(folder)


def test_the_plugins_own_kernels_are_the_default(monkeypatch) -> None:
    assert settings.read_settings({}).kernels == "own"
    assert settings.read_settings({"device": LEVELS[0]}).kernels == "own"
    backend = open_at(LEVELS[0])
    assert isinstance(backend._kernels, OwnKernels)
    backend.close()


@pytest.mark.parametrize("options", [{"kernels": "ipex"}, {"device": "ipex"}, {"kernels": "ipex", "device": "ipex"}])
def test_they_are_asked_for_by_option_or_by_name(options) -> None:
    assert settings.read_settings(options).kernels == "ipex"
    assert settings.read_settings(options).level == settings.read_settings({}).level


def test_the_environment_may_ask_for_them(monkeypatch) -> None:
    monkeypatch.setenv("BASEBOARD_CPU_KERNELS", "ipex")
    assert settings.read_settings({"device": LEVELS[0]}).kernels == "ipex"
    assert settings.read_settings({"kernels": "own"}).kernels == "own"
    assert baseboard_cpu_avx512.probe_devices()[0].details["kernels"].startswith("ipex; ")
    monkeypatch.setenv("BASEBOARD_CPU_KERNELS", "mkl")
    with pytest.raises(BackendUnavailable, match="kernels='mkl' is not known to the cpu_avx512 backend: own, ipex"):
        settings.read_settings({})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "onednn"}, "kernels='onednn' is not known to the cpu_avx512 backend: own, ipex"),
        ({"kernels": ["ipex"]}, "is not known to the cpu_avx512 backend: own, ipex"),
        ({"kernels": "own", "device": "ipex"}, "kernels='own' contradicts cpu_avx512:ipex: say it once"),
        ({"kernels": "ipex", "threads": 1}, "threads=1 is not possible with kernels='ipex'.* set OMP_NUM_THREADS"),
    ],
)
def test_bad_wishes_are_refused(options, message) -> None:
    (device,) = baseboard_cpu_avx512.probe_devices()
    with pytest.raises(BackendUnavailable, match=message):
        baseboard_cpu_avx512.open_backend(device, options)


def test_without_it_opening_fails_and_says_what_to_do(monkeypatch) -> None:
    def only_torch(name: str):
        if name == "torch":
            return distribution(name)
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", only_torch)
    (device,) = baseboard_cpu_avx512.probe_devices()
    assert device.available
    assert "it is not installed" in device.details["kernels"]
    found = f"here it is not installed \\(torch is {distribution('torch').version.replace('+', '.')}"
    with pytest.raises(BackendUnavailable, match=f"{found}\\): {WAY_OUT}"):
        baseboard_cpu_avx512.open_backend(device, {"kernels": "ipex"})
    baseboard_cpu_avx512.open_backend(device, {}).close()


@pytest.mark.parametrize(
    ("ipex", "torch"),
    [("2.8.0", "2.13.0"), ("2.7.10+xpu", "2.8.0"), ("2.8.0", "2.80.0"), ("2.8.10+xpu", "2.7.1+cpu")],
)
def test_versions_that_do_not_fit_are_named(tmp_path, monkeypatch, ipex, torch) -> None:
    packages(tmp_path, monkeypatch, ipex, torch, LIBRARY)
    with pytest.raises(BackendUnavailable) as refused:
        load_operators()
    assert f"needs intel-extension-for-pytorch 2.8.x on torch 2.8.x, and here it is {ipex} on torch {torch}" in str(
        refused.value
    )
    assert obstacle() == str(refused.value)
    assert str(refused.value) in baseboard_cpu_avx512.probe_devices()[0].details["kernels"]


def test_a_package_without_its_library_is_named(tmp_path, monkeypatch) -> None:
    packages(tmp_path, monkeypatch, "2.8.0", "2.8.0", "intel_extension_for_pytorch/__init__.py")
    with pytest.raises(BackendUnavailable, match=f"2.8.0 without libintel-ext-pt-cpu.so, on linux: {WAY_OUT}"):
        find_library()


def test_a_library_that_does_not_load_is_a_reason(tmp_path, monkeypatch) -> None:
    packages(tmp_path, monkeypatch, "2.8.0", "2.8.0+cpu", LIBRARY)
    assert find_library() == tmp_path / LIBRARY
    assert obstacle() is None
    with pytest.raises(BackendUnavailable, match=f"libintel-ext-pt-cpu.so cannot be used: .*; {WAY_OUT}"):
        load_operators()


def test_probing_loads_nothing_of_it() -> None:
    """Neither the package nor its library, even where both are installed."""
    code = """
import sys, baseboard_cpu_avx512 as plugin
plugin.probe_devices()
assert not {"torch", "intel_extension_for_pytorch"} & set(sys.modules)
assert "libintel-ext" not in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
