"""A failure tells its cause: the mistake that gives this result, and no other mistake."""

from __future__ import annotations

import pytest

from baseboard_conformance.cases import all_cases
from baseboard_conformance.mutants.catalog import MUTANTS
from conformance.test_selfcheck import opened, outcome_of

CASES = all_cases()
KNOWN = {
    "causal_misses_own": "a query does not see its own key",
    "causal_sees_next": "a query sees one key of the future",
    "causal_top_left": "aligned top-left",
    "no_causal_mask": "there is no causal mask",
    "chunk_forgets_history": "a chunk sees only its own tokens",
    "first_token_dropped": "the first key of each sequence is left out",
    "first_block_dropped": "the first block of each sequence is left out",
    "interleaved_heads": "query head h reads KV head h % Hkv",
    "window_one_more": "the window shows 17 keys; right are 16",
    "window_one_less": "the window shows 16 keys; right are 17",
    "window_not_in_decode": "the sliding window is ignored",
    "scale_from_head_size": "one over the root of the head size",
    "softcap_ignored": "the softcap is ignored",
    "softcap_before_scale": "logits that are not scaled yet",
    "alibi_sign": "ALiBi has the wrong sign",
    "sinks_ignored": "the sinks are ignored",
    "zero_times_nan": "NaN or infinity came through",
    "many_heads_share_first": "no common mistake fits; wrong are heads [9, 10",
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_mistake_is_named(name) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with opened(mutant) as bench:
        _, message = outcome_of(mutant.killer, bench)
    told = [line for line in message.split("\n") if line.startswith("diagnosis:")]
    assert len(told) == 1, message
    assert KNOWN[name] in told[0]


def test_coarse_rounding_is_told_from_a_wrong_formula() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "scale_two_percent")
    with opened(mutant) as bench:
        _, message = outcome_of("attention.plain/decode/float16/preferred", bench)
    assert "diagnosis: no common mistake fits" in message or "rounding is too coarse" in message
