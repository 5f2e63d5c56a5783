"""``memory_snapshot`` and the pool's last block."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Final

from baseboard.contract import DType, KVCache, MemorySnapshot
from baseboard_conformance.attending import compute, prepare
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.judging import Story, check_result
from baseboard_conformance.pools import plain_spec
from baseboard_conformance.problem import Problem, make_problem
from baseboard_conformance.scenario import Scenario, geometry

_POOL: Final = 128 << 20
_ITEMSIZE: Final[dict[DType, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
#: What allocators and the process itself add or keep: a quarter of the pool.
_SLACK: Final = _POOL // 4


def _snapshot(bench: Bench) -> MemorySnapshot:
    bench.hook.synchronize()
    shot = bench.hook.memory_snapshot()
    for field in fields(shot):
        value = getattr(shot, field.name)
        require(
            type(value) is int and value >= 0, f"memory_snapshot().{field.name} is {value!r}, right are bytes, an int"
        )
    require(shot.total > 0, "memory_snapshot().total is 0")
    require(shot.free <= shot.total, f"free {shot.free:,} is more than total {shot.total:,}")
    require(shot.peak >= shot.allocated, f"peak {shot.peak:,} is below allocated {shot.allocated:,}")
    require(shot.reserved >= shot.allocated, f"reserved {shot.reserved:,} is below allocated {shot.allocated:,}")
    return shot


def _touched_pool(bench: Bench, nbytes: int = _POOL) -> tuple[KVCache, int]:
    """A pool of about ``nbytes`` with something in every byte, and its exact size."""
    # One layer: few planes, each so large that no allocator keeps it for itself when it is freed.
    spec = plain_spec(bench, num_layers=1)
    each = bench.hook.kv_block_nbytes(spec=spec)
    count = nbytes // each
    cache = bench.hook.allocate_kv_cache(spec=spec, num_blocks=count)
    for plane in cache.planes:
        plane.fill_(1)
    return cache, each * count


def _follows(bench: Bench) -> None:
    """``allocated`` goes up by the pool when it is filled, and down again."""
    gc.collect()
    bench.hook.empty_cache()
    before = _snapshot(bench)
    cache, nbytes = _touched_pool(bench)
    held = _snapshot(bench)
    grown = held.allocated - before.allocated
    require(
        nbytes - _SLACK <= grown <= nbytes + _SLACK,
        f"a pool of {nbytes:,} bytes was filled to its last block, and allocated grew by {grown:,}",
    )
    del cache
    gc.collect()
    bench.hook.empty_cache()
    after = _snapshot(bench)
    kept = after.allocated - before.allocated
    require(kept <= _SLACK, f"the pool of {nbytes:,} bytes is gone, and allocated is still {kept:,} above where it was")


def _peak(bench: Bench) -> None:
    """``peak`` remembers what is gone, until it is reset."""
    gc.collect()
    bench.hook.empty_cache()
    bench.hook.reset_peak_memory()
    start = _snapshot(bench)
    drift = start.peak - start.allocated
    require(drift <= _SLACK, f"right after reset_peak_memory the peak is {drift:,} bytes above what is allocated")
    cache, nbytes = _touched_pool(bench)
    risen = _snapshot(bench).peak - start.peak
    require(risen >= nbytes - _SLACK, f"{nbytes:,} bytes were in use, and the peak rose by {risen:,}")
    del cache
    gc.collect()
    bench.hook.empty_cache()
    kept = _snapshot(bench)
    fallen = kept.peak - start.peak
    require(
        fallen >= nbytes - _SLACK,
        f"the peak forgot {nbytes:,} bytes that were in use since the reset: it is {fallen:,}",
    )
    bench.hook.reset_peak_memory()
    reset = _snapshot(bench)
    above = reset.peak - reset.allocated
    require(above <= _SLACK, f"after reset_peak_memory the peak is {above:,} bytes above what is allocated")


def _last_block(bench: Bench) -> dict[str, float]:
    """The pool's last blocks work like the first: no offset is cut short, no block is only promised."""
    scenario = Scenario(bench.can.dtypes[0], "decode")
    problem = make_problem(geometry(scenario, bench.can), "gauss", bench.seed)
    spec = problem.geometry.kv
    count = _POOL // bench.hook.kv_block_nbytes(spec=spec)
    shift = count - problem.geometry.num_blocks
    moved = Problem(problem.geometry, problem.tensors, tuple(table + shift for table in problem.tables))
    step = prepare(bench, moved, lambda bench, _: bench.hook.allocate_kv_cache(spec=spec, num_blocks=count))
    story = Story(f"sequences in the last blocks of a pool of {count}")
    return check_result(bench, moved, compute(bench, step), story).as_dict()


def _sizes_hold(bench: Bench) -> None:
    """Snapshots do not disturb: many in a row cost no memory that is counted."""
    first = _snapshot(bench)
    shots = [_snapshot(bench) for _ in range(64)]
    grown = shots[-1].allocated - first.allocated
    require(grown <= _SLACK, f"64 snapshots in a row raised allocated by {grown:,}")
    require({shot.total for shot in shots} == {first.total}, "total changes from snapshot to snapshot")


def _many_layers(bench: Bench) -> None:
    """The bytes of a block hold every layer; padding may be shared."""
    plain = plain_spec(bench)
    for num_layers in (1, 2, 4, 7):
        spec = replace(plain, num_layers=num_layers)
        numbers = num_layers * spec.num_kv_heads * (spec.head_size + spec.head_size_v) * spec.block_size
        content = numbers * _ITEMSIZE[spec.dtype]
        said = bench.hook.kv_block_nbytes(spec=spec)
        require(said >= content, f"a block of {num_layers} layers holds {content} bytes, kv_block_nbytes says {said}")


_PROMISES: Final = {
    "memory/sane": Promise("bytes; peak >= allocated always; free <= total", _sizes_hold),
    "memory/follows": Promise("allocated is what this process holds", _follows, alone=True),
    "memory/peak": Promise("peak since reset_peak_memory", _peak, alone=True),
    "memory/last_block": Promise("every block of a pool can be used, to the last", _last_block),
    "memory/layers": Promise("bytes over all layers of the group", _many_layers),
}


def cases() -> Iterator[Case]:
    yield from promised("the contract's text; sizes worked out from the spec", _PROMISES)
