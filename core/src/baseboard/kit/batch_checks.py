"""Checks of a :class:`StepBatch` against everything the contract says of it. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import ContractError, StepBatch


def violation(name: str, got: object, expected: str) -> ContractError:
    """The error for argument ``name``."""
    return ContractError(f"{name}: got {got}, expected {expected}")


def check_batch(batch: StepBatch, num_blocks: int, block_size: int) -> None:
    """Raise ``ContractError`` naming the first field of ``batch`` that is wrong, what it is and what it must be.

    ``num_blocks`` and ``block_size`` are those of the cache that the batch is for.
    """
    for problem in _problems(batch, num_blocks, block_size):
        raise problem


def _problems(batch: StepBatch, num_blocks: int, block_size: int) -> Iterator[ContractError]:
    # Lazy on purpose: each check may rely on those before it.
    yield from _arrays(batch)
    yield from _lengths(batch)
    yield from _tables(batch, num_blocks, block_size)
    yield from _slots(batch, num_blocks, block_size)


def _arrays(batch: StepBatch) -> Iterator[ContractError]:
    sequences, tokens = batch.num_seqs, batch.num_tokens
    expected: dict[str, tuple[type[np.generic], tuple[int | None, ...]]] = {
        "query_start_loc": (np.int32, (sequences + 1,)),
        "seq_lens": (np.int32, (sequences,)),
        "block_tables": (np.int32, (sequences, None)),
        "slot_mapping": (np.int64, (tokens,)),
        "positions": (np.int64, (tokens,)),
    }
    for name, (dtype, shape) in expected.items():
        array: NDArray[Any] = getattr(batch, name)
        if array.dtype != dtype:
            yield violation(name, array.dtype, np.dtype(dtype).name)
        if not _fits(array.shape, shape):
            yield violation(name, f"shape {list(array.shape)}", f"shape {['M' if n is None else n for n in shape]}")
        if not array.flags.c_contiguous:
            yield violation(name, f"strides {array.strides}", "a contiguous array")


def _fits(shape: tuple[int, ...], pattern: tuple[int | None, ...]) -> bool:
    pairs = zip(shape, pattern, strict=False)
    return len(shape) == len(pattern) and all(want in {None, have} for have, want in pairs)


def _lengths(batch: StepBatch) -> Iterator[ContractError]:
    starts = batch.query_start_loc
    if starts[0] != 0 or starts[-1] != batch.num_tokens:
        yield violation("query_start_loc", f"ends {starts[0]} and {starts[-1]}", f"0 and T={batch.num_tokens}")
    queries = np.diff(starts)
    yield from _where(queries < 1, "query_start_loc", queries, "at least one token for every sequence")
    yield from _where(batch.seq_lens < queries, "seq_lens", batch.seq_lens, "at least the tokens of this step")
    if not 0 <= batch.num_decodes <= batch.num_seqs:
        yield violation("num_decodes", batch.num_decodes, f"0 to S={batch.num_seqs}")
    decodes = queries[: batch.num_decodes]
    yield from _where(decodes != 1, "num_decodes", decodes, "one token in every decoding sequence")
    for name, lengths in (("max_query_len", queries), ("max_seq_len", batch.seq_lens)):
        if getattr(batch, name) != lengths.max(initial=0):
            yield violation(name, getattr(batch, name), str(lengths.max(initial=0)))


def _tables(batch: StepBatch, num_blocks: int, block_size: int) -> Iterator[ContractError]:
    tables = batch.block_tables
    wrong = (tables < 0) | (tables >= num_blocks)
    yield from _where(wrong.any(axis=1), "block_tables", tables, f"ids from 0 to {num_blocks - 1}")
    columns = -(-batch.max_seq_len // block_size)
    if tables.shape[1] < columns:
        yield violation("block_tables", f"{tables.shape[1]} columns", f"at least {columns}")


def _slots(batch: StepBatch, num_blocks: int, block_size: int) -> Iterator[ContractError]:
    slots = batch.slot_mapping
    yield from _where((slots < 0) | (slots >= num_blocks * block_size), "slot_mapping", slots, "slots of the pool")
    owned = slots >= block_size  # the null block's slots are for padding, as often as need be
    values, first = np.unique(slots[owned], return_index=True)
    if len(values) < owned.sum():
        repeated = np.delete(slots[owned], first)
        yield violation("slot_mapping", f"slots {repeated[:8].tolist()} more than once", "every slot once")
    queries = np.diff(batch.query_start_loc)
    rows = np.repeat(np.arange(batch.num_seqs), queries)
    positions = np.arange(batch.num_tokens) + np.repeat(batch.seq_lens - batch.query_start_loc[1:], queries)
    yield from _where(owned & (batch.positions != positions), "positions", batch.positions, "the sequence's last ones")
    blocks = batch.block_tables[rows, positions // block_size]
    expected = blocks * np.int64(block_size) + positions % block_size
    yield from _where(owned & (slots != expected), "slot_mapping", slots, "the slot of the position's block")


def _where(
    wrong: NDArray[np.bool_] | np.bool_, name: str, values: NDArray[Any], expected: str
) -> Iterator[ContractError]:
    if wrong.any():
        index = int(wrong.argmax())
        yield violation(f"{name}[{index}]", values[index], expected)
