"""The commands that measure on a GPU, at sizes for the interpreter: what they compute, not how fast."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from baseboard.contract import DeviceInfo, KVCacheSpec
from baseboard_cuda.check import gpu
from baseboard_cuda.check.correctness import deviations
from baseboard_cuda.check.fit import as_json
from baseboard_cuda.check.speed import Figure, Shape, decode, prefill, swap
from baseboard_cuda.check.tune import tune
from baseboard_cuda.opening import open_interpreter
from baseboard_cuda.tiles import Tile, TileKey, parse_tiles


class CountingClock:
    """Everything takes a second, but what is compared with takes half of one."""

    def __init__(self) -> None:
        self.times = itertools.cycle([1.0, 0.5])

    def seconds(self, action) -> float:
        action()
        return next(self.times)


def test_correctness(backend) -> None:
    found = deviations(backend, (Shape(2, 20, 1, 4, 2, 16), Shape(1, 18, 7, 4, 2, 24)))
    assert len(found) == 2 * 2 * 2  # shapes, dtypes, storages
    assert all(d.passed for d in found)
    assert max(d.error for d in found if "FP8" in d.name) > 1e-3


def test_figures(backend) -> None:
    read = decode(backend, Shape(3, 20, 1, 4, 2, 16), torch.float16, CountingClock())
    nbytes = 2 * 3 * 20 * 2 * 16 * 2
    assert (read.value, read.best) == pytest.approx((nbytes / 1e9, 2 * nbytes / 0.5 / 1e9))
    multiplied = prefill(backend, Shape(2, 18, 10, 4, 2, 16), torch.float16, CountingClock(), side=16)
    pairs = 2 * sum(range(9, 19))  # the last ten of eighteen queries see 9 to 18 keys
    assert (multiplied.value, multiplied.best) == pytest.approx((4 * pairs * 4 * 16 / 1e12, 2 * 16**3 / 0.5 / 1e12))
    spec = KVCacheSpec(2, 1, 16, 16, "float16", 8)
    moved = swap(backend, spec, 6, CountingClock())
    assert (moved.value, moved.best) == pytest.approx((6 * 2 * 512 / 1e9, 6 * 2 * 512 / 0.5 / 1e9))
    assert not moved.passed
    assert Figure("decode", 8.6, 10, "GB/s", 0.85).passed
    assert not Figure("decode", 8.4, 10, "GB/s", 0.85).passed


def test_tuning_takes_the_fastest(interpreter) -> None:
    """Of three tiles the clock likes the second one best."""
    tiles = [Tile(16, 16, 4, 1), Tile(16, 32, 4, 1), Tile(32, 32, 4, 1)]
    times = iter([3.0, 1.0, 2.0])

    class Clock:
        def seconds(self, action) -> float:
            action()
            return next(times)

    for storage in ("native", "fp8"):
        key = TileKey("decode", "float16", storage, 16)
        times = iter([3.0, 1.0, 2.0])
        assert tune(open_interpreter(), key, Shape(1, 20, 1, 4, 2), tiles, Clock()) == tiles[1]
        assert next(times, None) is None


def test_a_file_of_tiles_is_read_as_it_was_written() -> None:
    tiles = {
        TileKey("decode", "float16", "fp8", 64): Tile(16, 64, 4, 3),
        TileKey("prefill", "float32", "native", 512): Tile(16, 16, 8, 1),
    }
    assert parse_tiles("some", json.loads(as_json(tiles))).tiles == tiles


def test_the_report_names_what_is_wrong() -> None:
    device = DeviceInfo("cuda", "cuda", 0, "NVIDIA H100", "sm_90", 1, True, details={"driver": "570.1"})
    lines = [gpu.Line("decode", "90 %", True), gpu.Line("swap", "10 %", False), gpu.Line("sanitizer", "absent", None)]
    text = gpu.report(device, lines)
    assert "# NVIDIA H100" in text
    assert "* driver: 570.1" in text
    assert "| decode | 90 % | yes |" in text
    assert "| swap | 10 % | **no** |" in text
    assert "| sanitizer | absent | not judged |" in text


def test_without_a_gpu_nothing_is_written(tmp_path, capsys) -> None:
    if torch.cuda.is_available():
        return
    assert gpu.main([str(tmp_path / "reports")]) == 2
    assert "nothing was checked" in capsys.readouterr().out
    assert not (tmp_path / "reports").exists()
