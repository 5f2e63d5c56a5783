"""Finding, opening and refusing the backend."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import baseboard_cpu_avx512
from baseboard.contract import API_VERSION, AttentionSpec, BackendUnavailable, KVCacheSpec, Unsupported
from baseboard.discovery import choose, examine, read_installation
from baseboard_cpu_avx512 import cpu, settings
from baseboard_cpu_avx512.levels import Level
from baseboard_cpu_avx512.library import LibraryError, find_library, load_library, open_library
from plugins.cpu_avx512.conftest import LEVELS, open_at


def test_probe_says_what_the_host_can_do() -> None:
    (device,) = baseboard_cpu_avx512.probe_devices()
    assert device.available
    assert device.reason is None
    assert device.arch == Level(open_library().bb_preferred_level()).name
    assert device.arch in LEVELS
    assert device.priority > 0
    assert device.total_memory > 0
    assert set(device.details) == {"level", "other levels", "kernels", "cores used", "NUMA nodes", "options"}
    assert baseboard_cpu_avx512.contract_version() == API_VERSION


def test_probing_loads_no_torch() -> None:
    code = "import sys, baseboard_cpu_avx512 as b; b.probe_devices(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("level", [Level.none, Level.avx2, Level.avx512, Level.avx512_vnni])
def test_a_lesser_cpu_is_told_what_it_lacks(monkeypatch, level) -> None:
    library = SimpleNamespace(bb_host_level=lambda: int(level), bb_preferred_level=lambda: int(level))
    monkeypatch.setattr(baseboard_cpu_avx512, "open_library", lambda: library)
    (device,) = baseboard_cpu_avx512.probe_devices()
    assert device.available == (level is not Level.none)
    if level is Level.none:
        assert device.reason is not None
        assert "AVX2, FMA and F16C" in device.reason
        with pytest.raises(BackendUnavailable, match="the reference backend runs here"):
            baseboard_cpu_avx512.open_backend(device, {})
    else:
        assert device.arch == level.name
        assert "avx512_bf16 needs AVX-512 BF16" in device.details["other levels"]


def test_a_missing_library_is_a_reason(monkeypatch) -> None:
    def missing() -> None:
        raise LibraryError("the kernel library _kernels.so is missing")

    monkeypatch.setattr(baseboard_cpu_avx512, "open_library", missing)
    (device,) = baseboard_cpu_avx512.probe_devices()
    assert not device.available
    assert device.reason == "the kernel library _kernels.so is missing"


def test_a_package_without_its_library_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr("baseboard_cpu_avx512.library.find_spec", lambda _: None)
    with pytest.raises(LibraryError, match="C\\+\\+ compiler"):
        find_library()


def test_a_library_made_for_something_else_is_refused(tmp_path) -> None:
    garbage = tmp_path / "_kernels.so"
    garbage.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(LibraryError, match="made for another system"):
        load_library(str(garbage))
    other = ctypes.util.find_library("m")
    assert other is not None
    with pytest.raises(LibraryError, match="bb_abi"):
        load_library(other)


def test_a_library_with_another_interface_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("baseboard_cpu_avx512.library.ABI", 999)
    with pytest.raises(LibraryError, match="this package needs 999"):
        load_library(find_library())


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_can_be_forced(monkeypatch, level) -> None:
    assert settings.read_settings({"level": level}).level is Level[level]
    assert settings.read_settings({"device": level}).level is Level[level]
    monkeypatch.setenv("BASEBOARD_CPU_LEVEL", level)
    assert settings.read_settings({}).level is Level[level]


def test_a_level_above_the_host_is_refused(monkeypatch) -> None:
    library = SimpleNamespace(bb_host_level=lambda: 1, bb_preferred_level=lambda: 1)
    monkeypatch.setattr(settings, "open_library", lambda: library)
    with pytest.raises(BackendUnavailable, match="level avx512 is above this CPU's, avx2: avx512 needs AVX-512 F"):
        settings.read_settings({"level": "avx512"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "sse2"}, "level 'sse2' is not known"),
        ({"threads": 0}, "threads=0 is not possible: 1 to"),
        ({"threads": "many"}, "threads='many' is not possible"),
        ({"threads": 4096}, "threads=4096 is not possible"),
        ({"bind": "sockets"}, "bind='sockets' is not possible: none, or cores"),
        ({"bind": ["cores"]}, "is not possible: none, or cores"),
        ({"speed": 11}, "no option speed: it has bind, kernels, level and threads"),
    ],
)
def test_bad_options_are_refused(options, message) -> None:
    (device,) = baseboard_cpu_avx512.probe_devices()
    with pytest.raises(BackendUnavailable, match=message):
        baseboard_cpu_avx512.open_backend(device, options)


def test_the_core_takes_it_when_it_finds_nothing_better() -> None:
    reports = [report for report in examine(read_installation()).backends if report.name in {"cpu_avx512", "reference"}]
    assert {report.name for report in reports} == {"cpu_avx512", "reference"}
    assert choose(reports).device.backend == "cpu_avx512"


@pytest.mark.parametrize(
    ("kv", "attention", "reason"),
    [
        ({"head_size": 20}, {"head_size": 20}, "head size 20 is not supported, only multiples of 8 from 8 to 256"),
        ({"head_size": 264}, {"head_size": 264}, "head size 264 is not supported"),
        ({"head_size_v": 12}, {}, "value head size 12 is not supported"),
        ({"block_size": 24}, {}, "block size 24 is not supported, only 8, 16, 32, 64, 128, 256"),
        ({"kv_dtype": "fp8_e4m3"}, {}, "KV dtype 'fp8_e4m3' is not supported, only auto, int8"),
        ({"dtype": "float64"}, {}, "dtype 'float64' is not supported"),
        ({"num_layers": 0}, {}, "a group of 0 layers"),
        ({"num_kv_heads": 4}, {}, "the layer has 2 KV heads, its cache has 4"),
        ({}, {"head_size": 32}, "the layer has head size 32, its cache has 16"),
        ({"sliding_window": 8}, {}, "the layer sees all keys, its cache keeps 8"),
        ({}, {"num_heads": 5}, "5 query heads cannot share 2 KV heads evenly"),
        ({}, {"scale": float("nan")}, "scale nan is not a finite number"),
        ({}, {"sliding_window": 0}, "sliding window 0 is not a positive number"),
        ({}, {"softcap": -1.0}, "softcap -1.0 is not a positive number"),
        ({}, {"sinks": (1.0,)}, "there are 1 sinks for 4 query heads"),
        ({}, {"alibi_slopes": (float("inf"),) * 4}, "ALiBi slopes must be finite numbers"),
    ],
)
def test_what_is_not_declared_is_refused(fastest, kv, attention, reason) -> None:
    spec = KVCacheSpec(**({"num_layers": 1, "num_kv_heads": 2, "head_size": 16, "head_size_v": 16} | _STORED | kv))
    layer = AttentionSpec(**({"num_heads": 4, "num_kv_heads": 2, "head_size": 16, "scale": 0.25} | attention))
    assert any(reason in text for text in fastest.unsupported(spec, layer))
    with pytest.raises(Unsupported) as refused:
        fastest.attention_kernel(layer, spec)
    assert list(refused.value.reasons) == fastest.unsupported(spec, layer)


_STORED = {"dtype": "float32", "block_size": 16}


def test_declared_pairs_have_no_reason_against_them(fastest) -> None:
    promise = fastest.capabilities()
    for dtype in promise.dtypes:
        for kv_dtype in promise.kv_dtypes:
            for block_size in promise.block_sizes:
                kv = KVCacheSpec(1, 2, 16, 256, dtype, block_size, kv_dtype)
                assert fastest.unsupported(kv, AttentionSpec(64, 2, 16, 0.25, 3, 2.0)) == []


def machine(root: Path, siblings: dict[int, str]) -> Path:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Some Chip 9000\n")
    for number, text in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{number}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/thread_siblings_list").write_text(text + "\n")
        (folder / f"node{number % 2}").mkdir()
    return root


def test_siblings_of_a_core_count_once(tmp_path, monkeypatch) -> None:
    root = machine(tmp_path, {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 6: "2,6"})
    monkeypatch.setattr(cpu, "_allowed", lambda: (0, 1, 4, 5, 6))
    found = cpu.read_cpu(root)
    assert found.name == "Some Chip 9000"
    assert found.cores == (0, 1, 6)
    assert found.nodes == (0, 1)
    assert found.describe_cores() == "0,1,6 (3 of 5 logical CPUs allowed)"


def test_a_machine_that_tells_nothing_has_its_allowed_cpus(tmp_path) -> None:
    assert cpu.read_cpu(tmp_path).cores == tuple(sorted(os.sched_getaffinity(0)))


def test_threads_never_outnumber_cores() -> None:
    backend = open_at(LEVELS[0], threads=1)
    assert backend._threads() == 1
    backend.close()
