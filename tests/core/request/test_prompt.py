"""A long prompt is kept once, and looks like the one that was given."""

from __future__ import annotations

from array import array

import pytest

from baseboard.contract.sampling import SamplingParams
from baseboard.request.prompt import Beginning
from baseboard.request.request import Request, RequestSpec

PROMPT = tuple(range(1000, 1600))


def test_a_beginning_is_a_sequence_that_does_not_grow_with_its_tokens() -> None:
    tokens = array("i", PROMPT)
    beginning = Beginning(tokens, 600)
    tokens.append(7)
    assert beginning == PROMPT
    assert beginning != (*PROMPT, 7)
    assert (len(beginning), beginning[0], beginning[-1], beginning[2:4]) == (600, 1000, 1599, (1002, 1003))
    assert list(beginning) == list(PROMPT)
    assert beginning[-2:] == (1598, 1599)
    assert hash(beginning) == hash(PROMPT)
    with pytest.raises(IndexError):
        beginning[600]


def test_a_long_prompt_is_kept_once_and_does_not_change() -> None:
    spec = RequestSpec("x", PROMPT, SamplingParams(), 900, frozenset())
    request = Request(spec, (0,))
    request.tokens.append(7)
    assert request.spec == spec
    assert request.spec.prompt is not spec.prompt
    assert request.num_prompt == 600
