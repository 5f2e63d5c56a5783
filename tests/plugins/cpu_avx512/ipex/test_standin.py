"""The stand-in lays the traps that were found in the real operators: each of them is walked into once."""

from __future__ import annotations

import pytest
import torch

from plugins.cpu_avx512.ipex.standin import EndOfProcessError, StandIn

KEYS = torch.zeros(6, 2, 16, 8)
HEADS = torch.tensor([0, 0, 1, 1], dtype=torch.int32)


def decode(tables: torch.Tensor, window: int, softcap: float = -1.0, keys: torch.Tensor = KEYS) -> torch.Tensor:
    sequences = len(tables)
    out = torch.full((sequences, 4, 8), torch.nan)
    lengths = torch.full((sequences,), 5, dtype=torch.int32)
    size = keys.shape[2]
    query = torch.ones(sequences, 4, 8)
    StandIn().single_query_cached_kv_attention(
        out, query, keys, keys, HEADS, 1.0, tables, lengths, size, 5, None, window, 1.0, 1.0, softcap
    )
    return out


def chunk(left: int, alibi: torch.Tensor | None = None, length: int = 5) -> torch.Tensor:
    out = torch.full((3, 4, 8), torch.nan)
    starts = torch.tensor([0, 3], dtype=torch.int32)
    lengths = torch.tensor([0, length], dtype=torch.int32)
    tables = torch.ones(1, 1, dtype=torch.int32)
    keys = torch.arange(16.0)[None, None, :, None].expand(6, 2, 16, 8).contiguous()
    StandIn().flash_attn_varlen_func(
        out,
        torch.zeros(3, 4, 8),
        keys,
        keys,
        starts,
        lengths,
        3,
        length,
        1.0,
        True,
        tables,
        alibi,
        left,
        -1,
        "auto",
        1.0,
        1.0,
        -1.0,
    )
    return out[:, 0, 0]


def ones(sequences: int) -> torch.Tensor:
    return torch.ones(sequences, 1, dtype=torch.int32)


def test_a_layout_with_tokens_before_heads_ends_the_process() -> None:
    cache = torch.zeros(6, 16, 3, 8)
    slots = torch.tensor([16], dtype=torch.int32)
    with pytest.raises(EndOfProcessError):
        StandIn().reshape_and_cache(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), cache, cache, slots, "auto", 1.0, 1.0)


@pytest.mark.parametrize("slot", [-1, 96])
def test_slots_outside_the_pool_end_the_process(slot) -> None:
    slots = torch.tensor([slot], dtype=torch.int32)
    with pytest.raises(EndOfProcessError):
        StandIn().reshape_and_cache(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), KEYS, KEYS, slots, "auto", 1.0, 1.0)


def test_sequences_that_share_their_first_block_need_a_window() -> None:
    with pytest.raises(RuntimeError, match="Sliding window unsupported"):
        decode(ones(4), -1)
    assert decode(ones(4), 5).isfinite().all()
    assert decode(ones(3), -1).isfinite().all()


def test_a_window_takes_no_softcap_beside_it() -> None:
    with pytest.raises(AssertionError, match="together are refused"):
        decode(ones(1), 5, 2.0)


def test_large_blocks_and_no_sequences_end_the_process() -> None:
    with pytest.raises(EndOfProcessError):
        decode(ones(1), 5, keys=torch.zeros(6, 2, 256, 8))
    with pytest.raises(EndOfProcessError):
        decode(ones(1)[:0], 5)


def test_indices_of_another_type_or_with_strides_are_caught() -> None:
    with pytest.raises(AssertionError):
        decode(ones(2).long(), 5)
    with pytest.raises(AssertionError):
        decode(torch.ones(2, 4, dtype=torch.int32)[:, :2], 5)


def test_a_window_on_the_left_does_not_count_the_query_itself() -> None:
    """Values are their positions: a query at 2, 3 or 4 sees itself and one before it."""
    assert chunk(1).tolist() == [1.5, 2.5, 3.5]
    assert chunk(-1).tolist() == chunk(0).tolist() == [1.0, 1.5, 2.0]


def test_chunks_take_neither_alibi_nor_rows_before_the_sequence() -> None:
    with pytest.raises(RuntimeError, match="alibi_slopes is not supported"):
        chunk(-1, torch.ones(4))
    with pytest.raises(EndOfProcessError):
        chunk(-1, length=2)
