"""How fast block moves and decoding are. Every result is checked after it was timed; none decides conformance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from baseboard.discovery import open_backend
from baseboard_conformance.attending import compute, prepare
from baseboard_conformance.bench import Bench
from baseboard_conformance.judging import Story, check_result
from baseboard_conformance.pools import Pool, device_pool, host_pool, move
from baseboard_conformance.problem import make_problem
from baseboard_conformance.scenario import Scenario, geometry

_BLOCKS: Final = 256


@dataclass(frozen=True, slots=True)
class Line:
    """One measurement."""

    name: str
    seconds: float  #: of one call, the fastest seen
    nbytes: int  #: moved or read by one call


def measure(name: str, seconds: float) -> Iterator[Line]:
    """Open the backend in this process and time it; ``seconds`` are spent on each measurement."""
    with open_backend(name) as backend:
        bench = Bench(backend, name, seed=0)
        yield from _moves(bench, seconds)
        for dtype in bench.can.dtypes:
            yield _decoding(bench, Scenario(dtype, "long_decode"), seconds)


def _moves(bench: Bench, seconds: float) -> Iterator[Line]:
    rng = bench.rng
    device = device_pool(bench, 2 * _BLOCKS + 1, rng)
    host = host_pool(bench, device, _BLOCKS, rng)
    ids = rng.permutation(np.arange(1, 2 * _BLOCKS + 1))
    pairs = np.ascontiguousarray(ids.reshape(2, -1).T).astype(np.int64)
    out = np.stack([pairs[:, 0], np.arange(_BLOCKS)], axis=1).astype(np.int64)
    back = np.ascontiguousarray(out[:, ::-1])
    nbytes = _BLOCKS * bench.hook.kv_block_nbytes(spec=device.cache.spec)
    yield Line(
        "copy_blocks", _time(bench, partial(bench.hook.copy_blocks, cache=device.cache, pairs=pairs), seconds), nbytes
    )
    move(device, device, pairs)
    device.check(bench, "the timed copies")
    yield Line("swap_blocks out", _time(bench, partial(_swap, bench, device, host, out), seconds), nbytes)
    move(device, host, out)
    host.check(bench, "the timed swaps out")
    yield Line("swap_blocks in", _time(bench, partial(_swap, bench, host, device, back), seconds), nbytes)
    device.check(bench, "the timed swaps in")
    blocks = pairs[:, 1].copy()
    yield Line(
        "zero_blocks", _time(bench, partial(bench.hook.zero_blocks, cache=device.cache, blocks=blocks), seconds), nbytes
    )


def _swap(
    bench: Bench, source: Pool, destination: Pool, pairs: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> None:
    bench.hook.swap_blocks(source=source.cache, destination=destination.cache, pairs=pairs).wait()


def _decoding(bench: Bench, scenario: Scenario, seconds: float) -> Line:
    problem = make_problem(geometry(scenario, bench.can), "gauss", bench.seed)
    step = prepare(bench, problem)
    g = problem.geometry
    metadata = bench.hook.build_attention_metadata(batch=step.batch, cache=step.cache)
    kernel = bench.hook.attention_kernel(attention=g.attention, kv=g.kv)
    kernel.write(step.key.inner, step.value.inner, step.cache.layer(0), metadata)
    attend = partial(kernel.attend, step.query.inner, step.cache.layer(0), metadata)
    taken = _time(bench, attend, seconds)
    check_result(bench, problem, compute(bench, step), Story("the timed decoding"))
    blocks = sum(len(table) for table in problem.tables)
    return Line(f"decode {scenario.dtype}", taken, blocks * bench.hook.kv_block_nbytes(spec=g.kv))


def _time(bench: Bench, action: Callable[[], object], seconds: float) -> float:
    """The fastest of as many calls as fit."""
    best, end = float("inf"), time.perf_counter() + seconds
    action()
    while True:
        bench.hook.synchronize()
        began = time.perf_counter()
        action()
        bench.hook.synchronize()
        best = min(best, time.perf_counter() - began)
        if time.perf_counter() > end:
            return best
