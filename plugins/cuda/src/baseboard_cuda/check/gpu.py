"""All that has to be shown on a GPU, in one command that writes a report.

``python -m baseboard_cuda.check.gpu FOLDER`` needs torch, triton, numpy, pluggy, pytest and this repository.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import triton

import baseboard_cuda
from baseboard.contract import BackendUnavailable, DeviceInfo, KVCacheSpec
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.check.correctness import deviations
from baseboard_cuda.check.speed import Shape, decode, prefill, swap

_REPEATS: Final = 20
_SHAPES: Final = (Shape(3, 1000, 1), Shape(1, 9000, 1), Shape(2, 700, 300), Shape(2, 333, 333, 9, 3, 80))
_CONFORMANCE: Final = ("-m", "pytest", "--pyargs", "baseboard_conformance", "--cts-backend", "cuda", "-q")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report. ``passed`` is None where nothing could be judged."""

    what: str
    result: str
    passed: bool | None


class EventClock:
    """Implements :class:`baseboard_cuda.check.speed.Clock` by CUDA events: what the device takes, not the host."""

    def seconds(self, action: Callable[[], object]) -> float:
        action()
        times: list[float] = []
        for _ in range(_REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            action()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
        return min(times)


def check_correctness(backend: CudaBackend) -> list[Line]:
    return [
        Line(f"attention, {d.name}", f"error {d.error:.2e}, allowed {d.allowed:.0e}", d.passed)
        for d in deviations(backend, _SHAPES)
    ]


def check_waits(backend: CudaBackend) -> Line:
    """A step must not make the host wait for the device: torch raises where it would."""
    attention, kv = _SHAPES[0].specs(torch.float16)
    cache = backend.allocate_kv_cache(kv, _SHAPES[0].blocks)
    kernel = backend.attention_kernel(attention, kv)
    query = torch.zeros(3, attention.num_heads, attention.head_size, dtype=torch.float16, device=backend.torch_device())
    keys = query[:, : kv.num_kv_heads]
    torch.cuda.set_sync_debug_mode("error")
    try:
        metadata = backend.build_attention_metadata(_SHAPES[0].batch(), cache)
        kernel.write(keys, keys, cache.layer(0), metadata)
        kernel.attend(query, cache.layer(0), metadata)
    except RuntimeError as error:
        return Line("no wait for the device in a step", str(error), passed=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Line("no wait for the device in a step", "none", passed=True)


def check_speed(backend: CudaBackend) -> list[Line]:
    clock = EventClock()
    dtype = torch.bfloat16 if "bfloat16" in backend.capabilities().dtypes else torch.float16
    figures = [
        decode(backend, Shape(64, 8192, 1), dtype, clock),
        prefill(backend, Shape(8, 4096, 4096), dtype, clock, side=8192),
        swap(backend, KVCacheSpec(32, 8, 128, 128, "float16", 16), 4096, clock),
    ]
    return [
        Line(f.name, f"{f.value:.1f} of {f.best:.1f} {f.unit} ({f.share:.0%}, wanted {f.target or 0:.0%})", f.passed)
        for f in figures
    ]


def check_conformance(profile: str, prefix: Sequence[str] = ()) -> Line:
    """In a process of its own, as a vendor would run it."""
    command = [*prefix, sys.executable, *_CONFORMANCE, "--cts-profile", profile]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stdout or done.stderr).strip().splitlines()[-1:]
    return Line(f"conformance, {' '.join([*prefix, profile])}", " ".join(last), done.returncode == 0)


def check_sanitizer() -> Line:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return Line("compute-sanitizer", "not installed here", passed=None)
    return check_conformance("smoke", [tool, "--error-exitcode", "1"])


def report(device: DeviceInfo, lines: Sequence[Line]) -> str:
    """Markdown."""
    words = {True: "yes", False: "**no**", None: "not judged"}
    facts = {**device.details, "torch": torch.__version__, "triton": triton.__version__, "capability": device.arch}
    return "\n".join(
        [
            f"# {device.name}",
            "",
            *(f"* {name}: {value}" for name, value in facts.items()),
            "",
            "| what | result | as it should be |",
            "| --- | --- | --- |",
            *(f"| {line.what} | {line.result} | {words[line.passed]} |" for line in lines),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report; 1 when anything is not as it should be, 2 when there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    device = next(d for d in baseboard_cuda.probe_devices() if d.device_type == "cuda")
    try:
        backend = baseboard_cuda.open_backend(device, {})
    except BackendUnavailable as error:
        sys.stdout.write(f"nothing was checked: {error}\n")
        return 2
    assert isinstance(backend, CudaBackend)
    lines = [*check_correctness(backend), check_waits(backend), *check_speed(backend)]
    backend.close()
    lines += [check_conformance("full"), check_sanitizer()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{re.sub(r'[^a-z0-9]+', '-', device.name.lower()).strip('-')}.md"
    file.write_text(report(device, lines), encoding="utf-8")
    sys.stdout.write(f"{file}\n{report(device, lines)}")
    return int(any(line.passed is False for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
