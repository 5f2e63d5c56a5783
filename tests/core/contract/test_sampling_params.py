"""Every limit of ``SamplingParams``: what passes, what is refused, and what the refusal says."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest

from baseboard.contract import MAX_LOGPROBS, BaseboardError, RequestRejected, SamplingParams


def refusal(**params) -> str:
    with pytest.raises(RequestRejected) as caught:
        SamplingParams(**params)
    return str(caught.value)


def test_a_refusal_is_both_kinds_of_error():
    assert issubclass(RequestRejected, BaseboardError)
    assert issubclass(RequestRejected, ValueError)


def test_defaults():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert (params.stop, params.stop_token_ids, params.logit_bias, params.allowed_token_ids) == ((), (), None, None)
    assert (params.logprobs, params.prompt_logprobs, params.structured_output) == (None, None, None)
    assert (params.include_stop_str_in_output, params.ignore_eos, params.skip_special_tokens) == (False, False, True)


# name, smallest, largest, just below, just above; None where there is no bound
LIMITS = [
    ("n", 1, 10**9, 0, None),
    ("top_k", 0, 10**9, -1, None),
    ("max_tokens", 1, 10**9, 0, None),
    ("min_tokens", 0, 16, -1, None),
    ("logprobs", 0, MAX_LOGPROBS, -1, MAX_LOGPROBS + 1),
    ("prompt_logprobs", 0, MAX_LOGPROBS, -1, MAX_LOGPROBS + 1),
    ("seed", -(2**63), 2**64 - 1, -(2**63) - 1, 2**64),
    ("temperature", 0.0, 100.0, -1e-9, 100.1),
    ("top_p", 5e-324, 1.0, 0.0, 1.0000001),
    ("min_p", 0.0, 1.0, -1e-9, 1.0000001),
    ("presence_penalty", -2.0, 2.0, -2.01, 2.01),
    ("frequency_penalty", -2.0, 2.0, -2.01, 2.01),
    ("repetition_penalty", 0.01, 100.0, 0.0099, 100.1),
]


@pytest.mark.parametrize(("name", "low", "high", "below", "above"), LIMITS)
def test_limits_and_what_a_refusal_says(name, low, high, below, above):
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value
    bound = "above 0" if name == "top_p" else f"at least {low:g}" if isinstance(low, float) else f"at least {low}"
    assert refusal(**{name: below}).startswith(f"{name}={below!r} is not allowed: it must be {bound}")
    if above is not None:
        shown = f"{high:g}" if isinstance(high, float) else str(high)
        assert refusal(**{name: above}).endswith(f"at most {shown}")
        assert f"{name}={above!r}" in refusal(**{name: above})


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "seed"])
@pytest.mark.parametrize("value", [1.0, 1.5, "5", True, False, math.nan, math.inf, [1], b"1"], ids=repr)
def test_counts_are_whole_numbers(name, value):
    assert refusal(**{name: value}) == f"{name}={value!r} is not allowed: give a whole number"


@pytest.mark.parametrize("name", ["n", "top_k", "min_tokens"])
def test_counts_that_cannot_be_left_open(name):
    assert refusal(**{name: None}) == f"{name}=None is not allowed: give a whole number"


@pytest.mark.parametrize("name", ["max_tokens", "logprobs", "prompt_logprobs", "seed"])
def test_counts_that_can_be_left_open(name):
    assert getattr(SamplingParams(**{name: None}), name) is None


NUMBERS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0.5", True, False, None, [0.5], 1j], ids=repr)
def test_numbers_are_numbers(name, value):
    assert refusal(**{name: value}) == f"{name}={value!r} is not allowed: give a number"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=repr)
def test_numbers_are_finite(name, value):
    assert refusal(**{name: value}).startswith(f"{name}={value!r} is not allowed: it must be ")


@pytest.mark.parametrize("name", NUMBERS)
def test_whole_numbers_are_numbers(name):
    assert getattr(SamplingParams(**{name: 1}), name) == 1


@pytest.mark.parametrize("name", ["include_stop_str_in_output", "ignore_eos", "skip_special_tokens"])
@pytest.mark.parametrize("value", ["yes", "", 0, 1, None], ids=repr)
def test_switches_are_true_or_false(name, value):
    assert refusal(**{name: value}) == f"{name}={value!r} is not allowed: give True or False"


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, ()), ("END", ("END",)), ([], ()), (["a", "b"], ("a", "b")), (("a",), ("a",)), (iter("xy"), ("x", "y"))],
)
def test_stop_texts_become_a_tuple(given, kept):
    assert SamplingParams(stop=given).stop == kept


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [1], [None], [b"a"]])
def test_stop_texts_are_strings_that_are_not_empty(stop):
    assert "each stop text must be a string that is not empty" in refusal(stop=stop)


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("value", [5, b"ab", 1.5], ids=repr)
def test_lists_are_lists(name, value):
    assert refusal(**{name: value}) == f"{name}={value!r} is not allowed: give a list"


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
def test_token_ids(name):
    assert getattr(SamplingParams(**{name: [0, 7, 7]}), name) == (0, 7, 7)
    for bad in (-1, 1.0, True, "1", None):
        assert refusal(**{name: [3, bad]}) == f"{name}={bad!r} is not allowed: token ids are whole numbers from 0"
    assert refusal(**{name: "12"}) == f"{name}='12' is not allowed: give a list"


def test_token_ids_left_out():
    assert SamplingParams(stop_token_ids=None).stop_token_ids == ()
    assert SamplingParams(allowed_token_ids=None).allowed_token_ids is None
    assert "it allows no token at all" in refusal(allowed_token_ids=[])


@pytest.mark.parametrize("bias", [-100, 100.0, 0, 1.5])
def test_biases(bias):
    assert SamplingParams(logit_bias={0: bias, 50_000: 1}).logit_bias == {0: bias, 50_000: 1}


@pytest.mark.parametrize("bias", [-100.1, 101, math.nan, math.inf, True, "1", None], ids=repr)
def test_biases_out_of_range(bias):
    assert refusal(logit_bias={3: bias}) == f"logit_bias={bias!r} is not allowed: a bias is a number from -100 to 100"


@pytest.mark.parametrize("token", [-1, "3", 1.0, True, None], ids=repr)
def test_bias_of_something_that_is_no_token(token):
    assert refusal(logit_bias={token: 1.0}).startswith(f"logit_bias={token!r} is not allowed: token ids")


@pytest.mark.parametrize("value", [[1, 2], "12", 5, [(1, 2.0)]], ids=repr)
def test_bias_is_a_mapping(value):
    assert refusal(logit_bias=value).startswith(f"logit_bias={value!r} is not allowed: give a mapping")


def test_what_happens_to_the_callers_objects_later_does_not_matter():
    bias, stop = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[-7], stop[0] = math.nan, ""
    assert (params.logit_bias, params.stop) == ({1: 2.0}, ("a",))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_tokens": 17}, "min_tokens=17 is more than max_tokens=16"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens=3 is more than max_tokens=2"),
        (
            {"min_tokens": 1, "allowed_token_ids": [5, 6], "stop_token_ids": [6, 5, 4]},
            "min_tokens with allowed_token_ids that are all stop tokens leaves nothing to sample",
        ),
        ({"structured_output": {"json": {}}}, "no grammar engine"),
    ],
)
def test_contradictions(params, message):
    assert message in refusal(**params)


@pytest.mark.parametrize(
    "params",
    [
        {"min_tokens": 16},
        {"min_tokens": 10**6, "max_tokens": None},
        {"min_tokens": 1, "allowed_token_ids": [5, 6], "stop_token_ids": [6]},
        {"min_tokens": 0, "allowed_token_ids": [6], "stop_token_ids": [6]},
    ],
)
def test_no_contradiction(params):
    SamplingParams(**params)


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (0.0, True), (-0.0, True), (5e-324, False), (1, False)])
def test_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_replace_checks_anew_and_leaves_the_original():
    params = SamplingParams(stop="x", logit_bias={1: 1.0}, max_tokens=4)
    changed = params.replace(max_tokens=2, seed=3)
    assert (changed.max_tokens, changed.seed, changed.stop, changed.logit_bias) == (2, 3, ("x",), {1: 1.0})
    assert (params.max_tokens, params.seed) == (4, None)
    with pytest.raises(RequestRejected, match="min_tokens=5 is more than max_tokens=4"):
        params.replace(min_tokens=5)
    with pytest.raises(TypeError, match="no_such_field"):
        params.replace(no_such_field=1)


def test_frozen_comparable_and_fit_to_travel():
    params = SamplingParams(stop=["a"], logit_bias={1: 1.0}, allowed_token_ids=[1, 2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2
    assert params == SamplingParams(stop=("a",), logit_bias={1: 1.0}, allowed_token_ids=(1, 2))
    assert pickle.loads(pickle.dumps(params)) == params
