"""Claims against capabilities, and the refusal that an unclaimed case looks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baseboard_conformance.claims import Need, declares_head_size, preferred_head_size, preferred_ratio
from baseboard_conformance.mutants.plain import CAPABILITIES

LISTED = replace(CAPABILITIES, head_sizes=(80, 128), max_head_size=128, max_gqa_ratio=2, max_seqs=8)


@pytest.mark.parametrize(
    ("need", "missing"),
    [
        (Need(dtype="float16", block_size=16, head_size=80, ratio=2), []),
        (Need(kv_dtype="int8"), ["KV dtype int8"]),
        (Need(block_size=48), ["block size 48"]),
        (Need(head_size=64), ["head size 64"]),
        (Need(ratio=3), ["3 query heads per KV head"]),
        (Need(seqs=9), ["9 sequences in one step"]),
        (Need(features=frozenset({"async_swap", "sinks"})), ["feature async_swap"]),
    ],
)
def test_what_is_missing_is_named(need, missing) -> None:
    assert need.missing(LISTED) == missing


def test_only_what_the_specs_show_can_be_refused() -> None:
    bare = replace(LISTED, features=frozenset())
    assert not Need(features=frozenset({"mixed_batch", "non_causal"})).refusable(bare)
    assert Need(features=frozenset({"mixed_batch", "softcap"})).refusable(bare)
    assert not Need(seqs=9).refusable(LISTED)


def test_preferences_are_among_what_is_declared() -> None:
    assert preferred_head_size(LISTED) == 80
    assert preferred_head_size(CAPABILITIES) == 64
    assert preferred_head_size(replace(CAPABILITIES, head_size_multiple=48)) == 48
    assert preferred_head_size(replace(CAPABILITIES, head_size_multiple=128)) == 128
    assert (preferred_ratio(LISTED), preferred_ratio(CAPABILITIES)) == (2, 4)
    assert declares_head_size(CAPABILITIES, 72)
    assert not declares_head_size(CAPABILITIES, 70)
    assert not declares_head_size(CAPABILITIES, 264)
