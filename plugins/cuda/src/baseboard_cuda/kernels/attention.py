"""Paged attention: one kernel for decode, prefill, chunks and every mixture, and the one that joins its splits.

A program computes one *tile*: some consecutive queries of one sequence, for the query heads that share one KV head,
or for a part of these where they are too many for a tile. It finds its sequence by a binary search in
``query_start_loc``: so the grid depends on nothing but the numbers of tokens and sequences, and lengths and block
tables may change between two launches of one CUDA graph.

::

    rows of a tile    (query 0, head 0) (query 0, head 1) ... (query 1, head 0) ...     TILE_ROWS, the rest is masked
    axis 0 of grid    tiles of sequence 0, of sequence 1, ...
    axis 1            KV heads, and the parts of each one's query heads
    axis 2            splits: equal parts of the keys that the tile sees; joined afterwards by ``join_splits``

The GPU computes powers of two, so scores are brought into units of log 2: by the factor that they are multiplied with
anyway. With EXACT they stay as they are: rounded once less, and the exponential function is right to the last bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from baseboard_cuda.kernels.numbers import E4M3_FACTOR, LOG2_E, exp_of_negative, from_e4m3, tanh


@triton.jit
def _find_tile(tile, query_start_loc, num_sequences, ONE_QUERY: tl.constexpr, TILE_QUERIES: tl.constexpr):
    """The sequence that this tile is of, and the first query in it.

    Each sequence has one tile number more than its queries could need, so that numbers follow from sums alone.
    """
    if ONE_QUERY:
        sequence = tile
        first = 0
    else:
        first_query = tl.load(query_start_loc)
        sequence = 0
        beyond = num_sequences
        while beyond - sequence > 1:
            middle = (sequence + beyond) // 2
            if (tl.load(query_start_loc + middle) - first_query) // TILE_QUERIES + middle <= tile:
                sequence = middle
            else:
                beyond = middle
        before = (tl.load(query_start_loc + sequence) - first_query) // TILE_QUERIES + sequence
        first = (tile - before) * TILE_QUERIES
    return sequence, first


@triton.jit
def _seen_keys(
    first,  # positions of the tile's first and last query
    last,
    seq_len,
    window,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """Keys that some row of the tile sees, or this split's part of them: all belong to the sequence."""
    begin = 0
    end = seq_len
    if CAUSAL:
        end = tl.minimum(seq_len, last + 1)
    if WINDOWED:
        begin = tl.maximum(0, first - window + 1)
    if SPLIT:
        part = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), TILE_KEYS), tl.num_programs(2)) * TILE_KEYS
        begin += tl.program_id(2) * part
        end = tl.minimum(end, begin + part)
    return begin, end


@triton.jit
def _scores(
    x,  # products of queries and keys, times the factor
    keys,
    exists,
    position,
    slope,
    softcap,
    window,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAPPED: tl.constexpr,
    ALIBI: tl.constexpr,
):
    """Capped, biased, and minus infinity where a key is not seen."""
    if SOFTCAPPED:
        x = tanh(x) * softcap
    if ALIBI:
        x += slope[:, None] * (keys[None, :] - position[:, None]).to(tl.float32)
    visible = exists[None, :]
    if CAUSAL:
        visible = visible & (keys[None, :] <= position[:, None])
    if WINDOWED:
        visible = visible & (keys[None, :] > position[:, None] - window)
    return tl.where(visible, x, float("-inf"))


@triton.jit
def _power(x, EXACT: tl.constexpr):
    """The exponential function of a difference of scores, which is zero at most."""
    if EXACT:
        result = exp_of_negative(x)
    else:
        result = tl.exp2(x)
    return result


@triton.jit
def _in_unit(x, EXACT: tl.constexpr):
    """A number that is added to scores, in their unit."""
    if not EXACT:
        x *= LOG2_E
    return x


@triton.jit
def _within(rows, columns, COLUMNS: tl.constexpr, PADDED: tl.constexpr):
    """Mask of a tile whose columns were padded to a power of two; no test where none was needed."""
    if COLUMNS == PADDED:
        mask = rows
    else:
        mask = rows & (columns < COLUMNS)
    return mask


@triton.jit
def _decoded(stored, FP8: tl.constexpr, dtype: tl.constexpr):
    """Keys or values as numbers of ``dtype``; FP8 without its factor."""
    if FP8:
        numbers = from_e4m3(stored).to(dtype)
    else:
        numbers = stored
    return numbers


# Numbers that change from step to step: for them the kernel is not compiled anew.
@triton.jit(do_not_specialize=["first_sequence", "num_sequences", "table_stride", "window"])
def paged_attention(
    out,
    partial,  # float32 [T, H, splits, BLOCK_DV]: sums of values; only with SPLIT
    partial_stats,  # float32 [T, H, splits, 2]: maximum and sum of weights; only with SPLIT
    query,
    cache,  # one layer's plane, in its element type
    scales,  # the same memory as float32; only with SCALED
    block_tables,
    seq_lens,
    query_start_loc,
    slopes,  # float32 [H]; only with ALIBI
    sinks,  # float32 [H]; only with SINKS
    first_sequence,
    num_sequences,
    out_token_stride,
    out_head_stride,
    query_token_stride,
    query_head_stride,
    table_stride,
    block_stride,  # elements of a block; so are the value_ offsets
    value_offset,
    key_scale_offset,  # float32 from the block's beginning
    value_scale_offset,
    score_factor,  # from a product of query and key to its score, or to the softcap's argument
    softcap,  # in the scores' unit
    window,
    NUM_KV_HEADS: tl.constexpr,
    HEADS_PER_KV: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAPPED: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
    FP8: tl.constexpr,
    SCALED: tl.constexpr,
    ONE_QUERY: tl.constexpr,  # every sequence has exactly one: the tile's number is the sequence's
    SPLIT: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fill ``out`` ``[T, H, Dv]`` for some of the step's sequences; with SPLIT, fill ``partial`` instead."""
    query_start_loc += first_sequence
    seq_lens += first_sequence
    block_tables += tl.cast(first_sequence, tl.int64) * table_stride
    PARTS: tl.constexpr = (HEADS_PER_KV + TILE_HEADS - 1) // TILE_HEADS
    kv_head = tl.program_id(1) // PARTS
    split = tl.program_id(2)
    sequence, first = _find_tile(tl.program_id(0), query_start_loc, num_sequences, ONE_QUERY, TILE_QUERIES)
    query_begin = tl.load(query_start_loc + sequence)
    query_len = tl.load(query_start_loc + sequence + 1) - query_begin
    if first >= query_len:
        return
    seq_len = tl.load(seq_lens + sequence)
    context = seq_len - query_len

    rows = tl.arange(0, TILE_ROWS)
    query_index = first + rows // TILE_HEADS
    shared_by = tl.program_id(1) % PARTS * TILE_HEADS + rows % TILE_HEADS
    head = kv_head * HEADS_PER_KV + shared_by
    row_exists = (rows < TILE_QUERIES * TILE_HEADS) & (query_index < query_len) & (shared_by < HEADS_PER_KV)
    position = context + query_index
    token = (query_begin + query_index).to(tl.int64)

    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q = tl.load(
        query + token[:, None] * query_token_stride + head[:, None].to(tl.int64) * query_head_stride + d[None, :],
        mask=_within(row_exists[:, None], d[None, :], HEAD_SIZE, BLOCK_D),
        other=0.0,
    )

    # A sink is a key without a value, seen first; where splits are joined it must be there once only.
    highest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    if SINKS:
        sink = _in_unit(tl.load(sinks + head, mask=row_exists, other=0.0), EXACT)
        highest = tl.where(split == 0, sink, highest)
        total += tl.where(split == 0, 1.0, 0.0)
    slope = highest
    if ALIBI:
        slope = _in_unit(tl.load(slopes + head, mask=row_exists, other=0.0), EXACT)
    sums = tl.zeros([TILE_ROWS, BLOCK_DV], tl.float32)

    table = block_tables + tl.cast(sequence, tl.int64) * table_stride
    last = context + tl.minimum(first + TILE_QUERIES, query_len) - 1
    begin, end = _seen_keys(context + first, last, seq_len, window, CAUSAL, WINDOWED, SPLIT, TILE_KEYS)
    for start in range(begin, end, TILE_KEYS):
        keys = start + tl.arange(0, TILE_KEYS)
        exists = keys < end
        block = tl.load(table + keys // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        place = (keys % BLOCK_SIZE) * NUM_KV_HEADS + kv_head
        k = tl.load(
            cache + (block * block_stride + place * HEAD_SIZE)[None, :] + d[:, None],
            mask=_within(exists[None, :], d[:, None], HEAD_SIZE, BLOCK_D),
            other=0,
        )
        x = tl.dot(q, _decoded(k, FP8, q.dtype), input_precision=PRECISION) * score_factor
        at = block * (block_stride // 4) + place
        if SCALED:
            x *= tl.load(scales + at + key_scale_offset, mask=exists, other=0.0)[None, :]
        x = _scores(x, keys, exists, position, slope, softcap, window, CAUSAL, WINDOWED, SOFTCAPPED, ALIBI)

        new_highest = tl.maximum(highest, tl.max(x, 1))
        # A row that has seen no key yet: any finite number will do, and the difference of infinities is none.
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weights = _power(x - base[:, None], EXACT)
        fade = _power(highest - base, EXACT)
        total = total * fade + tl.sum(weights, 1)
        highest = new_highest

        v = tl.load(
            cache + (block * block_stride + value_offset + place * HEAD_SIZE_V)[:, None] + dv[None, :],
            mask=_within(exists[:, None], dv[None, :], HEAD_SIZE_V, BLOCK_DV),
            other=0,
        )
        if SCALED:
            weights *= tl.load(scales + at + value_scale_offset, mask=exists, other=0.0)[None, :] * E4M3_FACTOR
        sums = tl.dot(weights.to(q.dtype), _decoded(v, FP8, q.dtype), sums * fade[:, None], input_precision=PRECISION)

    if FP8 and not SCALED:
        sums *= E4M3_FACTOR
    at_row = token * (NUM_KV_HEADS * HEADS_PER_KV) + head
    if SPLIT:
        at_split = at_row * tl.num_programs(2) + split
        tl.store(partial_stats + at_split * 2, highest, mask=row_exists)
        tl.store(partial_stats + at_split * 2 + 1, total, mask=row_exists)
        tl.store(partial + at_split[:, None] * BLOCK_DV + dv[None, :], sums, mask=row_exists[:, None])
    else:
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out + token[:, None] * out_token_stride + head[:, None].to(tl.int64) * out_head_stride + dv[None, :],
            result.to(out.dtype.element_ty),
            mask=_within(row_exists[:, None], dv[None, :], HEAD_SIZE_V, BLOCK_DV),
        )


@triton.jit(do_not_specialize=["first_token", "splits"])
def join_splits(
    out,
    partial,
    partial_stats,
    first_token,
    splits,
    out_token_stride,
    out_head_stride,
    HEAD_SIZE_V: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Weigh what the splits of a tile found by their share of the whole. Grid: tokens, query heads."""
    token = (first_token + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1)
    dv = tl.arange(0, BLOCK_DV)
    row = (token * tl.num_programs(1) + head) * splits
    highest = float("-inf")
    total = 0.0
    sums = tl.zeros([BLOCK_DV], tl.float32)
    for split in range(splits):
        split_highest = tl.load(partial_stats + (row + split) * 2)
        new_highest = tl.maximum(highest, split_highest)
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        fade = _power(highest - base, EXACT)
        weight = _power(split_highest - base, EXACT)
        total = total * fade + tl.load(partial_stats + (row + split) * 2 + 1) * weight
        sums = sums * fade + tl.load(partial + (row + split) * BLOCK_DV + dv) * weight
        highest = new_highest
    result = sums / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out + token * out_token_stride + head.to(tl.int64) * out_head_stride + dv,
        result.to(out.dtype.element_ty),
        mask=dv < HEAD_SIZE_V,
    )
