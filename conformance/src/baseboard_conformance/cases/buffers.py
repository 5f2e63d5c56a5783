"""Whose memory is whose: strided inputs, no ``out``, rewritten index arrays, overwritten slots, layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import KVCache, StepBatch
from baseboard_conformance.attending import as_tensor_rows, clean_cache, compute, prepare
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases.attention import DTYPES
from baseboard_conformance.judging import Story, check_result
from baseboard_conformance.layouts import Layout, Row
from baseboard_conformance.numerics import Array
from baseboard_conformance.oracle import Tensors
from baseboard_conformance.problem import Problem, make_problem, step_batch
from baseboard_conformance.scenario import Scenario, geometry
from baseboard_conformance.verdict import POLICY


@dataclass(frozen=True, slots=True)
class _Buffers:
    scenario: Scenario

    def _problem(self, bench: Bench) -> Problem:
        return make_problem(geometry(self.scenario, bench.can), "gauss", bench.seed)

    def own_result(self, bench: Bench) -> dict[str, float]:
        """Without ``out`` the result is a new tensor."""
        problem = self._problem(bench)
        step = prepare(bench, problem)
        first, second = compute(bench, step), compute(bench, step)
        require(np.array_equal(first, second), "the same step computed twice gives two results")
        return check_result(bench, problem, first, Story("no out given")).as_dict()

    def strided(self, bench: Bench) -> dict[str, float]:
        """Query, key and value are parts of a wider tensor, as a fused projection gives them."""
        problem = self._problem(bench)
        step = prepare(bench, problem)
        metadata = bench.hook.build_attention_metadata(batch=step.batch, cache=step.cache)
        kernel = bench.hook.attention_kernel(attention=problem.geometry.attention, kv=problem.geometry.kv)
        query, key, value = (as_tensor_rows(part.inner) for part in (step.query, step.key, step.value))
        kernel.write(key, value, step.cache.layer(0), metadata)
        got = bench.host(kernel.attend(query, step.cache.layer(0), metadata))
        return check_result(bench, problem, got, Story("rows that are strided")).as_dict()

    def double_buffered(self, bench: Bench) -> dict[str, float]:
        """The index arrays are rewritten for the next step before the kernels of this one run."""
        problem = self._problem(bench)
        step = prepare(bench, problem)
        own = _in_host_buffers(bench, step.batch)
        first = bench.hook.build_attention_metadata(batch=own, cache=step.cache)
        kept = {f.name: getattr(own, f.name) for f in fields(own) if isinstance(getattr(own, f.name), np.ndarray)}
        for array in kept.values():
            array[...] = 0
        # The next step: only the first sequence, one token further back; it must not disturb the step before.
        row = problem.rows[0]
        other = step_batch(_first_only(problem, Row(1, row.seq_len)))
        second = bench.hook.build_attention_metadata(batch=other, cache=step.cache)
        kernel = bench.hook.attention_kernel(attention=problem.geometry.attention, kv=problem.geometry.kv)
        layer = step.cache.layer(0)
        kernel.write(step.key.inner, step.value.inner, layer, first)
        got = bench.host(kernel.attend(step.query.inner, layer, first))
        check_result(bench, problem, got, Story("index arrays that were rewritten after the metadata was built"))
        last = problem.tensors[0].query[-1:]
        alone = bench.host(kernel.attend(bench.tensor(last, problem.geometry.kv.dtype), layer, second))
        small = _first_only(problem, Row(1, row.seq_len))
        return check_result(
            bench, small, alone, Story("metadata of the next step, used after that of this one")
        ).as_dict()

    def overwritten(self, bench: Bench) -> dict[str, float]:
        """Slots that are written again hold what was written last."""
        problem = self._problem(bench)
        step = prepare(bench, problem)
        rng = np.random.default_rng(bench.seed + 1)
        kernel = bench.hook.attention_kernel(attention=problem.geometry.attention, kv=problem.geometry.kv)
        metadata = bench.hook.build_attention_metadata(batch=step.batch, cache=step.cache)
        dtype = problem.geometry.kv.dtype
        garbage = [bench.tensor(rng.standard_normal(part.inner.shape), dtype) for part in (step.key, step.value)]
        kernel.write(garbage[0], garbage[1], step.cache.layer(0), metadata)
        return check_result(bench, problem, compute(bench, step), Story("slots that are written twice")).as_dict()

    def in_pieces(self, bench: Bench) -> dict[str, float]:
        """A sequence written in pieces of uneven size is the sequence written at once."""
        problem = self._problem(bench)
        cache = clean_cache(bench, problem)
        pieces = (1, 3, problem.geometry.kv.block_size, 2, problem.geometry.kv.block_size + 1)
        longest = max(range(len(problem.rows)), key=lambda i: problem.rows[i].seq_len)
        return _piecewise(bench, _first_only(_moved_first(problem, longest), problem.rows[longest]), cache, pieces)

    def layers_apart(self, bench: Bench) -> dict[str, float]:
        """Layers of a group share metadata and blocks, never content."""
        problem = self._problem(bench)
        g = problem.geometry
        deep = replace(problem, geometry=replace(g, kv=replace(g.kv, num_layers=3)))
        step = prepare(bench, deep)
        metadata = bench.hook.build_attention_metadata(batch=step.batch, cache=step.cache)
        kernels = [bench.hook.attention_kernel(attention=g.attention, kv=deep.geometry.kv) for _ in range(3)]
        kernels[0].write(step.key.inner, step.value.inner, step.cache.layer(0), metadata)
        for number in (1, 2):
            noise = [bench.tensor(-number * deep.new_rows(name), g.kv.dtype) for name in ("key", "value")]
            kernels[number].write(noise[0], noise[1], step.cache.layer(number), metadata)
        got = bench.host(kernels[0].attend(step.query.inner, step.cache.layer(0), metadata))
        return check_result(bench, deep, got, Story("other layers written in between")).as_dict()


def _in_host_buffers(bench: Bench, batch: StepBatch) -> StepBatch:
    """The batch in arrays from ``allocate_host_buffer``, as the core has them."""
    moved: dict[str, Any] = {}
    for field in fields(batch):
        array: NDArray[Any] | int = getattr(batch, field.name)
        if not isinstance(array, int):
            buffer = bench.hook.allocate_host_buffer(shape=array.shape, dtype=array.dtype.name)
            buffer[...] = array
            moved[field.name] = buffer
    return replace(batch, **moved)


def _first_only(problem: Problem, row: Row) -> Problem:
    """The first sequence alone, at the same place, with ``row.query_len`` queries."""
    old = problem.tensors[0]
    tensors = Tensors(old.query[-row.query_len :], old.key[: row.seq_len], old.value[: row.seq_len])
    return Problem(problem.geometry.with_layout(Layout((row,))), (tensors,), (problem.tables[0],))


def _moved_first(problem: Problem, index: int) -> Problem:
    return replace(problem, tensors=(problem.tensors[index],), tables=(problem.tables[index],))


def _piecewise(bench: Bench, problem: Problem, cache: KVCache, pieces: tuple[int, ...]) -> dict[str, float]:
    row, tensors, dtype = problem.rows[0], problem.tensors[0], problem.geometry.kv.dtype
    kernel = bench.hook.attention_kernel(attention=problem.geometry.attention, kv=problem.geometry.kv)
    done, turn = 0, 0
    got: Array = np.zeros(0)
    while done < row.seq_len:
        # The last piece holds all queries that the problem asks for.
        rest = row.seq_len - row.query_len - done
        count = min(pieces[turn % len(pieces)], rest) if rest > 0 else row.query_len
        batch = step_batch(_first_only_of(problem, Row(count, done + count)))
        metadata = bench.hook.build_attention_metadata(batch=batch, cache=cache)
        span = slice(done, done + count)
        kernel.write(
            bench.tensor(tensors.key[span], dtype), bench.tensor(tensors.value[span], dtype), cache.layer(0), metadata
        )
        done, turn = done + count, turn + 1
        if done == row.seq_len:
            got = bench.host(kernel.attend(bench.tensor(tensors.query, dtype), cache.layer(0), metadata))
    return check_result(bench, problem, got, Story("a sequence written in uneven pieces")).as_dict()


def _first_only_of(problem: Problem, row: Row) -> Problem:
    return replace(problem, geometry=problem.geometry.with_layout(Layout((row,))))


_BODIES: Final[Mapping[str, tuple[str, Callable[[_Buffers, Bench], Mapping[str, float]], tuple[str, ...]]]] = {
    "out.none": ("without out the result is a new tensor", _Buffers.own_result, ("decode", "chunked")),
    "inputs.strided": (
        "the last dimension of every tensor is contiguous; rows may be strided",
        _Buffers.strided,
        ("decode", "chunked", "prefill"),
    ),
    "metadata.double_buffer": (
        "a backend that reads the index arrays later than the call must copy them; metadata stays valid while that of "
        "the next step is built",
        _Buffers.double_buffered,
        ("decode", "chunked"),
    ),
    "kv_write.overwrite": ("a slot holds what was written last", _Buffers.overwritten, ("decode", "chunked")),
    "kv_write.pieces": ("a sequence may be written in pieces of any size", _Buffers.in_pieces, ("decode", "chunked")),
    "kv_write.layers": ("layers of a group share blocks, never content", _Buffers.layers_apart, ("decode", "chunked")),
}


def cases() -> Iterator[Case]:
    for name, (clause, body, layouts) in _BODIES.items():
        for layout in layouts:
            for dtype in DTYPES:
                scenario = Scenario(dtype, layout)
                yield Case(
                    id=f"{name}/{layout}/{dtype}",
                    title=clause,
                    clause=clause,
                    oracle="NumPy float64",
                    body=_Bound(body, _Buffers(scenario)),
                    profile=Profile.SMOKE if layout == "chunked" else Profile.CORE,
                    need=scenario.need,
                    params=scenario.as_dict(),
                    probe=scenario,
                    tolerance=POLICY,
                )


@dataclass(frozen=True, slots=True)
class _Bound:
    method: Callable[[_Buffers, Bench], Mapping[str, float]]
    buffers: _Buffers

    def __call__(self, bench: Bench) -> Mapping[str, float]:
        return self.method(self.buffers, bench)
