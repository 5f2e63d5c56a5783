"""Running a problem through a backend's hooks, watching every buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import KVCache, StepBatch
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.guarded import Guarded, guard
from baseboard_conformance.layouts import Row
from baseboard_conformance.numerics import Array
from baseboard_conformance.problem import Problem, step_batch

if TYPE_CHECKING:
    import torch

#: Makes the cache and says what lies in it before the sequences come.
CacheMaker = Callable[[Bench, Problem], KVCache]


def clean_cache(bench: Bench, problem: Problem) -> KVCache:
    return bench.hook.allocate_kv_cache(spec=problem.geometry.kv, num_blocks=problem.geometry.num_blocks)


def used_cache(bench: Bench, problem: Problem, *, content: float) -> KVCache:
    """Every slot, the null block's too, was written by somebody who is gone now: keys and values of ``content``."""
    cache = clean_cache(bench, problem)
    kv, num_blocks = problem.geometry.kv, problem.geometry.num_blocks
    tokens = (num_blocks - 1) * kv.block_size
    tenant = StepBatch(
        query_start_loc=np.array([0, tokens], np.int32),
        seq_lens=np.array([tokens], np.int32),
        block_tables=np.arange(1, num_blocks, dtype=np.int32)[None],
        slot_mapping=np.arange(kv.block_size, num_blocks * kv.block_size, dtype=np.int64),
        positions=np.arange(tokens, dtype=np.int64),
        num_decodes=int(tokens == 1),
        max_query_len=tokens,
        max_seq_len=tokens,
        causal=problem.geometry.causal,
    )
    dummies = kv.block_size
    null = replace(
        tenant,
        query_start_loc=np.array([0, dummies], np.int32),
        seq_lens=np.array([dummies], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        slot_mapping=np.arange(dummies, dtype=np.int64),
        positions=np.arange(dummies, dtype=np.int64),
        num_decodes=int(dummies == 1),
        max_query_len=dummies,
        max_seq_len=dummies,
    )
    kernel = bench.hook.attention_kernel(attention=problem.geometry.attention, kv=kv)
    for batch in (tenant, null):
        metadata = bench.hook.build_attention_metadata(batch=batch, cache=cache)
        shape = (batch.num_tokens, kv.num_kv_heads)
        key = bench.tensor(np.full((*shape, kv.head_size), content), kv.dtype)
        value = bench.tensor(np.full((*shape, kv.head_size_v), content), kv.dtype)
        kernel.write(key, value, cache.layer(0), metadata)
    return cache


def poisoned_with(content: float) -> CacheMaker:
    return partial(used_cache, content=content)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step of a problem, ready to be computed: every array guarded."""

    problem: Problem
    cache: KVCache
    batch: StepBatch
    query: Guarded
    key: Guarded
    value: Guarded


def prepare(bench: Bench, problem: Problem, make_cache: CacheMaker = clean_cache) -> Step:
    """A cache in which the sequences' earlier tokens are written, and the tensors of the step."""
    cache = make_cache(bench, problem)
    _write_history(bench, problem, cache)
    return Step(problem, cache, step_batch(problem), *_step_tensors(bench, problem))


def compute(bench: Bench, step: Step, out: Guarded | None = None) -> Array:
    """Write and attend; the result ``[T, H, Dv]`` on the host. Fails when anything but cache and ``out`` changes."""
    before = _copies(step.batch)
    metadata = bench.hook.build_attention_metadata(batch=step.batch, cache=step.cache)
    kernel = bench.hook.attention_kernel(attention=step.problem.geometry.attention, kv=step.problem.geometry.kv)
    layer = step.cache.layer(0)
    kernel.write(step.key.inner, step.value.inner, layer, metadata)
    result = kernel.attend(step.query.inner, layer, metadata, None if out is None else out.inner)
    got = bench.host(result)
    for guarded in (step.query, step.key, step.value, *([] if out is None else [out])):
        guarded.check_bands()
    for guarded in (step.query, step.key, step.value):
        guarded.check_unchanged()
    _check_same(step.batch, before)
    g = step.problem.geometry
    shape = (step.batch.num_tokens, g.attention.num_heads, g.kv.head_size_v)
    require(got.shape == shape, f"attend gave shape {list(got.shape)}, right is [T, H, Dv] = {list(shape)}")
    require(
        result.dtype == step.query.inner.dtype,
        f"attend gave {result.dtype}, right is the query's dtype {step.query.inner.dtype}",
    )
    return got


def blank_out(bench: Bench, problem: Problem) -> Guarded:
    """An ``out`` full of NaN: what is not written shows."""
    g = problem.geometry
    shape = (sum(row.query_len for row in problem.rows), g.attention.num_heads, g.kv.head_size_v)
    return guard(bench, "out", bench.tensor(np.full(shape, np.nan), g.kv.dtype))


def attend(bench: Bench, problem: Problem, make_cache: CacheMaker = clean_cache) -> Array:
    """The backend's result of the tokens that are no padding, ``[T', H, Dv]``."""
    step = prepare(bench, problem, make_cache)
    return compute(bench, step, blank_out(bench, problem))[problem.real]


def _write_history(bench: Bench, problem: Problem, cache: KVCache) -> None:
    """Earlier tokens of each sequence, as a prefill of its own; those in shared blocks are written with the first."""
    kernel = bench.hook.attention_kernel(attention=problem.geometry.attention, kv=problem.geometry.kv)
    for index, row in enumerate(problem.rows):
        done = row.seq_len - row.query_len
        if row.padding or done < 1:
            continue
        one = _only(problem, index, Row(done, done))
        metadata = bench.hook.build_attention_metadata(batch=step_batch(one), cache=cache)
        dtype = problem.geometry.kv.dtype
        key = bench.tensor(problem.tensors[index].key[:done], dtype)
        value = bench.tensor(problem.tensors[index].value[:done], dtype)
        kernel.write(key, value, cache.layer(0), metadata)


def _only(problem: Problem, index: int, row: Row) -> Problem:
    layout = type(problem.geometry.layout)((row,))
    return Problem(problem.geometry.with_layout(layout), (problem.tensors[index],), (problem.tables[index],))


def _step_tensors(bench: Bench, problem: Problem) -> tuple[Guarded, Guarded, Guarded]:
    new_keys: list[Array] = []
    new_values: list[Array] = []
    for row, tensors in zip(problem.rows, problem.tensors, strict=True):
        # What padding brings along is garbage, and the worst garbage there is.
        factor = np.nan if row.padding else 1.0
        new_keys.append(tensors.key[-row.query_len :] * factor)
        new_values.append(tensors.value[-row.query_len :] * factor)
    dtype = problem.geometry.kv.dtype
    parts: Sequence[tuple[str, list[Array]]] = (
        ("query", [tensors.query for tensors in problem.tensors]),
        ("key", new_keys),
        ("value", new_values),
    )
    query, key, value = (guard(bench, name, bench.tensor(np.concatenate(arrays), dtype)) for name, arrays in parts)
    return query, key, value


def _copies(batch: StepBatch) -> dict[str, NDArray[Any]]:
    arrays = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return {name: array.copy() for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _check_same(batch: StepBatch, before: dict[str, NDArray[Any]]) -> None:
    for name, array in before.items():
        require(np.array_equal(getattr(batch, name), array), f"StepBatch.{name} was changed by the backend")


def as_tensor_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as rows of a wider tensor, as the parts of a fused projection are."""
    wide = tensor.new_full((tensor.shape[0], tensor.shape[1] * tensor.shape[2] + 24), float("nan"))
    part = wide[:, 8 : 8 + tensor.shape[1] * tensor.shape[2]].view(tensor.shape)
    part.copy_(tensor)
    return part
