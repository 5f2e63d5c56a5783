"""All that has to be shown on a GPU, in one command that writes a report.

``python -m baseboard_cuda.check.gpu FOLDER``, with the sources of core, conformance and this plugin on the import path,
needs torch, triton, numpy, pluggy and pytest, and nothing else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
import triton

import baseboard_cuda
from baseboard.contract import BackendUnavailable, DeviceInfo, KVCacheSpec, LayerKind
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.check.correctness import deviations
from baseboard_cuda.check.layer import Shape
from baseboard_cuda.check.programs import Programs, environment_with, overlay
from baseboard_cuda.check.report import Line, report
from baseboard_cuda.check.speed import Candidate, Clock, Figure, decode, prefill, swap
from baseboard_cuda.engines.choice import AUTO
from baseboard_cuda.options import PREFIX

_REPEATS: Final = 20
#: Other engines, and the size of blocks that they read best.
_OTHERS: Final = {"flashinfer": 16, "varlen": 256}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is computed and measured."""

    shapes: tuple[Shape, ...]
    decode: Shape
    prefill: Shape
    side: int  #: of the matrices that are multiplied for comparison
    swapped: KVCacheSpec
    swapped_blocks: int


_SIZES: Final = Sizes(
    shapes=(Shape(3, 1000, 1), Shape(1, 9000, 1), Shape(2, 700, 300), Shape(2, 333, 333, 9, 3, 80)),
    decode=Shape(64, 8192, 1),
    prefill=Shape(8, 4096, 4096),
    side=8192,
    swapped=KVCacheSpec(32, 8, 128, 128, "float16", 16),
    swapped_blocks=4096,
)


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


def check_correctness(backend: CudaBackend, shapes: tuple[Shape, ...]) -> list[Line]:
    return [
        Line(f"attention, {d.name}", f"error {d.error:.2e}, allowed {d.allowed:.0e}", d.passed)
        for d in deviations(backend, shapes)
    ]


def check_waits(backend: CudaBackend, shape: Shape) -> Line:
    """A step must not make the host wait for the device: torch raises where it would."""
    attention, kv = shape.specs(torch.float16)
    cache = backend.allocate_kv_cache(kv, shape.blocks)
    kernel = backend.attention_kernel(attention, kv)
    heads = shape.sequences, attention.num_heads, attention.head_size
    query = torch.zeros(heads, dtype=torch.float16, device=backend.torch_device())
    keys = query[:, : kv.num_kv_heads]
    torch.cuda.set_sync_debug_mode("error")
    try:
        backend.copy_blocks(cache, np.array([[1, 2]]))
        backend.zero_blocks(cache, np.array([1]))
        metadata = backend.build_attention_metadata(shape.batch(), cache)
        kernel.write(keys, keys, cache.layer(0), metadata)
        kernel.attend(query, cache.layer(0), metadata)
    except RuntimeError as error:
        return Line("no wait for the device in a step", str(error), passed=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Line("no wait for the device in a step", "none", passed=True)


def check_graph(backend: CudaBackend, shape: Shape) -> Line:
    """Attention recorded with one length and replayed with another equals the same step told kernel by kernel."""
    what = "attention in a CUDA graph, with lengths that change"
    attention, kv = shape.specs(torch.float16)
    runner = backend.graph_runner([LayerKind(attention, kv)])
    if runner is None:
        return Line(what, "the backend records nothing", passed=False)
    cache = backend.allocate_kv_cache(kv, shape.blocks)
    for plane in cache.planes:
        plane.view(torch.float16).normal_()
    kernel = backend.attention_kernel(attention, kv)
    heads = shape.sequences, attention.num_heads, attention.head_size
    query = torch.randn(heads, device=backend.torch_device()).half()
    out = torch.empty_like(query)
    batch = shape.batch()
    shorter = replace(batch, seq_lens=batch.seq_lens - shape.length // 3)
    recorded = backend.build_attention_metadata(batch, cache)

    def compute() -> None:
        kernel.attend(query, cache.layer(0), recorded, out)

    graph = runner.capture([recorded], compute)
    results: list[torch.Tensor] = []
    same = True
    for step in (batch, shorter):
        graph.replay([backend.build_attention_metadata(step, cache)])
        told = backend.build_attention_metadata(step, cache)
        told.reach_all()  # split as the recorded one is, so that sums are the same to the last bit
        same = same and torch.equal(out, kernel.attend(query, cache.layer(0), told))
        results.append(out.clone())
    if torch.equal(*results):
        return Line(what, "lengths are baked in", passed=False)
    return Line(what, "equal" if same else "differs", same)


def check_speed(backend: CudaBackend, others: Sequence[CudaBackend], sizes: Sizes, clock: Clock) -> list[Line]:
    """Ours against what the device does at best; and other engines beside it, in the same run."""
    dtype = torch.bfloat16 if "bfloat16" in backend.capabilities().dtypes else torch.float16
    figures: list[Figure] = [
        decode(Candidate(backend, 0.85), sizes.decode, dtype, clock),
        prefill(Candidate(backend, 0.60), sizes.prefill, dtype, clock, sizes.side),
        swap(backend, sizes.swapped, sizes.swapped_blocks, clock),
    ]
    lines = [_figure_line(figure) for figure in figures]
    for other in others:
        block_size = _OTHERS[other.options.attention]
        candidate = Candidate(other, None)
        reads, computes = (replace(shape, block_size=block_size) for shape in (sizes.decode, sizes.prefill))
        lines.append(_figure_line(decode(candidate, reads, dtype, clock)))
        lines.append(_figure_line(prefill(candidate, computes, dtype, clock, sizes.side)))
    return lines


def _figure_line(figure: Figure) -> Line:
    wanted = "" if figure.target is None else f", wanted {figure.target:.0%}"
    text = f"{figure.value:.1f} of {figure.best:.1f} {figure.unit} ({figure.share:.0%}{wanted})"
    return Line(figure.name, text, None if figure.target is None else figure.passed)


def check_others(device: DeviceInfo) -> tuple[list[CudaBackend], list[Line]]:
    """Backends with the engines that can be had, and why the others cannot."""
    found: list[CudaBackend] = []
    lines: list[Line] = []
    for name in _OTHERS:
        try:
            backend = baseboard_cuda.open_backend(device, {"attention": name})
        except BackendUnavailable as error:
            lines.append(Line(f"attention by {name}", str(error), None))
        else:
            assert isinstance(backend, CudaBackend)
            found.append(backend)
    return found, lines


def check_backend(backend: CudaBackend, others: Sequence[CudaBackend], sizes: Sizes) -> list[Line]:
    """What is checked in this process: numbers, waits, graphs, speed, and the other engines' numbers and speed."""
    lines = check_correctness(backend, sizes.shapes)
    for other in others:
        name, block_size = other.options.attention, _OTHERS[other.options.attention]
        shapes = tuple(replace(shape, head_size=128, block_size=block_size) for shape in sizes.shapes)
        lines += [Line(f"{name}, {d.name}", f"error {d.error:.2e}", d.passed) for d in deviations(other, shapes)]
    lines += [check_waits(backend, sizes.shapes[0]), check_graph(backend, sizes.shapes[0])]
    lines += check_speed(backend, others, sizes, EventClock())
    for opened in (backend, *others):
        opened.close()
    return lines


def check_programs(folder: Path, others: Sequence[str]) -> list[Line]:
    """What is checked by programs of their own: conformance with its reports, the sanitizer, a model end to end.

    Conformance once more with what ``others`` there are, each where it can compute a case and ours where it cannot.
    """
    with overlay() as found:
        environment = environment_with(found)
        programs = Programs(environment)
        lines = [
            programs.conformance("full", folder / "conformance"),
            programs.sanitizer(folder / "sanitizer"),
            programs.model(),
            programs.recorded(),
        ]
        if others:
            mixed = Programs({**environment, f"{PREFIX}ATTENTION": AUTO})
            line = mixed.conformance("core", folder / "conformance-auto")
            lines.append(replace(line, what=f"{line.what}, with {' and '.join(others)}"))
        return lines


def main(
    arguments: Sequence[str] | None = None, probe: Callable[[], list[DeviceInfo]] = baseboard_cuda.probe_devices
) -> int:
    """Writes the report; 1 when anything is not as it should be, 2 when there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    device = next(d for d in probe() if d.device_type == "cuda")
    try:
        backend = baseboard_cuda.open_backend(device, {})
    except BackendUnavailable as error:
        sys.stdout.write(f"nothing was checked: {error}\n")
        return 2
    assert isinstance(backend, CudaBackend)
    folder = folder / re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    others, lines = check_others(device)
    names = [other.options.attention for other in others]
    lines += [*check_backend(backend, others, _SIZES), *check_programs(folder, names)]
    return write_report(folder, device, lines)


def write_report(folder: Path, device: DeviceInfo, lines: Sequence[Line]) -> int:
    """``report.md`` in ``folder``; 1 when anything is not as it should be."""
    facts = {**device.details, "torch": torch.__version__, "triton": triton.__version__, "capability": device.arch}
    text = report(device.name, facts, lines)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(text, encoding="utf-8")
    sys.stdout.write(f"{folder / 'report.md'}\n{text}")
    return int(any(line.passed is False for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
