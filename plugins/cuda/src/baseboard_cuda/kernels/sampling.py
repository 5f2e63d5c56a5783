"""Drawing the next token: temperature, top-k, top-p and min-p without sorting, and without asking the host.

What is kept of a row sorted by (logit descending, token ascending) is a prefix. So a filter is a *threshold*, and how
many of the logits that equal it have room. It is found by bisection over the bits of float32, which are ordered like
integers once negative numbers are turned round: at most 32 passes over a row that lies in the cache, whatever its size.
The middle of two thresholds is computed in 64 bits; each of them, and one more than the largest key, has room in 32.

Weights are float32, their sums float64: a sum over the whole vocabulary decides where top-p ends.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from baseboard_cuda.kernels.numbers import exp_of_negative

#: The key of minus infinity: below it are only keys of what is no number.
_LOWEST_KEY: Final = tl.constexpr(-2139095041)


@triton.jit
def _key(x):
    """int32 in the order of float32 ``x``; both zeros have one key."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value(key):
    """The float32 that has this key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _load(logits, at, size):
    return tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float32)


@triton.jit
def _weight(x, peak, temperature):
    """What a logit weighs in the draw: the largest one 1."""
    return exp_of_negative((x - peak) / temperature)


@triton.jit
def _find_peak(logits, size, TILE: tl.constexpr):
    """The largest logit, the first token that has it, and whether any logit is not a number."""
    peak = float("-inf")
    first = 0
    broken = 0
    for start in range(0, size, TILE):
        at = start + tl.arange(0, TILE)
        x = _load(logits, at, size)
        broken += TILE - tl.sum((x <= float("inf")).to(tl.int32), 0)
        largest = tl.max(x, 0)
        if largest > peak:
            first = tl.min(tl.where(x == largest, at, size), 0)
            peak = largest
    return peak, first, broken


@triton.jit
def _count(logits, size, threshold, TILE: tl.constexpr):
    """How many tokens have a key of ``threshold`` or more."""
    count = 0
    for start in range(0, size, TILE):
        at = start + tl.arange(0, TILE)
        count += tl.sum(((_key(_load(logits, at, size)) >= threshold) & (at < size)).to(tl.int32), 0)
    return count


@triton.jit
def _sum(logits, size, threshold, peak, temperature, TILE: tl.constexpr):
    """What the tokens with a key of ``threshold`` or more weigh together: float64."""
    total = tl.zeros([1], tl.float64)
    for start in range(0, size, TILE):
        x = _load(logits, start + tl.arange(0, TILE), size)
        total += tl.sum(tl.where(_key(x) >= threshold, _weight(x, peak, temperature), 0.0), 0)
    return tl.sum(total, 0)


@triton.jit
def _cut_at_count(logits, size, least, peak, TILE: tl.constexpr):
    """The highest threshold that leaves ``least`` tokens or more."""
    low = tl.cast(_LOWEST_KEY, tl.int64)
    high = _key(peak).to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        if _count(logits, size, middle.to(tl.int32), TILE) >= least:
            low = middle
        else:
            high = middle
    return low.to(tl.int32)


@triton.jit
def _cut_at_sum(logits, size, lowest, least, peak, temperature, TILE: tl.constexpr):
    """The highest threshold, from ``lowest``, that leaves tokens which weigh ``least`` or more."""
    low = lowest.to(tl.int64)
    high = _key(peak).to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        if _sum(logits, size, middle.to(tl.int32), peak, temperature, TILE) >= least:
            low = middle
        else:
            high = middle
    return low.to(tl.int32)


@triton.jit
def _kept(logits, at, size, seen, threshold, room, least_weight, peak, temperature):
    """Weights of the tokens ``at``, zero for those that are filtered out; ``seen`` counts equals of the threshold."""
    x = _load(logits, at, size)
    key = _key(x)
    equal = ((key == threshold) & (at < size)).to(tl.int32)
    rank = seen + tl.cumsum(equal, 0)
    weight = _weight(x, peak, temperature)
    keep = ((key > threshold) | ((equal == 1) & (rank <= room))) & (weight >= least_weight) & (at < size)
    return tl.where(keep, weight, 0.0), seen + tl.sum(equal, 0)


@triton.jit
def _filter(logits, size, top_k, top_p, peak, temperature, TILE: tl.constexpr):
    """Where the prefix that top-k and top-p keep ends: its threshold, and how many equals of it have room."""
    threshold = tl.cast(_LOWEST_KEY, tl.int32)
    room = size
    if (top_k > 0) & (top_k < size):
        threshold = _cut_at_count(logits, size, top_k, peak, TILE)
        room = top_k - _count(logits, size, threshold + 1, TILE)
    if top_p < 1.0:
        # Top-p is a share of what top-k has left.
        above = _sum(logits, size, threshold + 1, peak, temperature, TILE)
        enough = top_p * (above + room * _weight(_value(threshold), peak, temperature).to(tl.float64))
        highest = _cut_at_sum(logits, size, threshold, enough, peak, temperature, TILE)
        above = _sum(logits, size, highest + 1, peak, temperature, TILE)
        each = tl.maximum(_weight(_value(highest), peak, temperature), 1e-38).to(tl.float64)
        needed = tl.maximum(1.0, tl.minimum(tl.ceil((enough - above) / each), size)).to(tl.int32)
        room = tl.where(highest == threshold, tl.minimum(room, needed), needed)
        threshold = highest
    return threshold, room


@triton.jit
def _draw(logits, size, threshold, room, least_weight, uniform, peak, temperature, TILE: tl.constexpr):
    """The token at which the weights' sum, in the order of the vocabulary, goes beyond its share ``uniform``."""
    total = tl.zeros([1], tl.float64)
    seen = 0
    for start in range(0, size, TILE):
        at = start + tl.arange(0, TILE)
        weight, seen = _kept(logits, at, size, seen, threshold, room, least_weight, peak, temperature)
        total += tl.sum(weight, 0)
    target = uniform * tl.sum(total, 0)
    before = tl.zeros([1], tl.float64)
    seen = 0
    found = size
    last = 0
    for start in range(0, size, TILE):
        at = start + tl.arange(0, TILE)
        weight, seen = _kept(logits, at, size, seen, threshold, room, least_weight, peak, temperature)
        reached = before + tl.cumsum(weight, 0)
        found = tl.minimum(found, tl.min(tl.where((reached > target) & (weight > 0.0), at, size), 0))
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, at, 0), 0))
        before += tl.sum(weight, 0)
    # Rounded, the last sum may be less than the total: then it is the last token that can be drawn.
    return tl.where(found < size, found, last)


@triton.jit(do_not_specialize=["row_stride"])
def sample(
    out,  # int64 [S]
    logits,
    temperature,  # float32 [S]; zero takes the most likely token
    top_k,  # int32 [S]; zero keeps all
    top_p,  # float32 [S]; one keeps all
    min_p,  # float32 [S]; of the largest weight
    uniform,  # float64 [S], in [0, 1)
    row_stride,
    size,
    TILE: tl.constexpr,
):
    """One token of each row; -1 where a logit is no number, or none is finite. Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    heat = tl.load(temperature + row)
    peak, token, broken = _find_peak(logits, size, TILE)
    if (broken > 0) | (tl.abs(peak) == float("inf")):
        token = -1
    elif heat > 0.0:
        share = tl.load(top_p + row)
        threshold, room = _filter(logits, size, tl.load(top_k + row), share, peak, heat, TILE)
        token = _draw(logits, size, threshold, room, tl.load(min_p + row), tl.load(uniform + row), peak, heat, TILE)
    tl.store(out + row, tl.cast(token, tl.int64))
