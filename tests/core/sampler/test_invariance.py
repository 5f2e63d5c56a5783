"""A request's tokens are its own: whatever its batch-mates, their order, or where it was resumed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from baseboard.runtime.sampler import Sampler
from core.sampler.oracle import row

VOCABULARY = 60

REQUESTS: Sequence[dict] = [
    {"temperature": 0.0},
    {"seed": 1},
    {"seed": 2, "top_k": 5},
    {"seed": 3, "top_p": 0.7},
    {"seed": 4, "top_k": 20, "top_p": 0.5, "min_p": 0.02},
    {"seed": 5, "min_p": 0.1, "temperature": 2.0},
    {"seed": 6, "repetition_penalty": 1.5, "top_k": 9},
    {"seed": 7, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"seed": 8, "logit_bias": {3: 5.0}, "allowed_token_ids": (3, 4, 5, 6)},
    {"seed": 9, "min_tokens": 4, "stop_ids": range(50)},
    {"temperature": 0.0, "repetition_penalty": 3.0, "logprobs": 2},
]


def model(tokens: Sequence[int]) -> torch.Tensor:
    """Logits that depend on the whole history, coarse enough to tie often."""
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31)
    return (torch.randn(VOCABULARY, generator=generator) * 4).round() / 2


def request(index: int, prompt: Sequence[int], outputs: Sequence[int]):
    return row(prompt, outputs, **({"seed": 0} | REQUESTS[index]))


def alone(index: int, prompt: Sequence[int], steps: int) -> list[int]:
    """One row kept over all steps, in a batch of its own."""
    held, outputs = request(index, prompt, []), []
    for _ in range(steps):
        (token,) = Sampler().sample(model([*prompt, *outputs])[None], [held]).token_ids
        held.append(token)
        outputs.append(token)
    return outputs


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_tokens_equal_the_solo_run_in_any_company(data):
    prompts = [[i, i + 1, 3] for i in range(len(REQUESTS))]
    outputs: list[list[int]] = [[] for _ in REQUESTS]
    held = [request(i, prompts[i], []) for i in range(len(REQUESTS))]
    steps = 6
    while running := [i for i in range(len(REQUESTS)) if len(outputs[i]) < steps]:
        batch = data.draw(st.permutations(running))[: data.draw(st.integers(1, len(running)))]
        for i in data.draw(st.sets(st.sampled_from(batch))):  # preempted: the row is made anew from its tokens
            held[i] = request(i, prompts[i], outputs[i])
        logits = torch.stack([model([*prompts[i], *outputs[i]]) for i in batch])
        for i, token in zip(batch, Sampler().sample(logits, [held[i] for i in batch]).token_ids, strict=True):
            held[i].append(token)
            outputs[i].append(token)
    assert outputs == [alone(i, prompts[i], steps) for i in range(len(REQUESTS))]


def test_the_vocabulary_may_be_large_and_the_batch_narrow_or_wide():
    logits = torch.randn(9, 20_000, generator=torch.Generator().manual_seed(3))
    rows = [row(**REQUESTS[i % 2 + 2] | {"seed": i}) for i in range(9)]
    together = Sampler().sample(logits, rows).token_ids
    assert together == tuple(Sampler().sample(logits[i : i + 1], [rows[i]]).token_ids[0] for i in range(9))


def test_logits_are_not_changed():
    logits = torch.stack([model([i]) for i in range(len(REQUESTS))])
    before = logits.clone()
    Sampler().sample(logits, [request(i, [1], [2, 3]) for i in range(len(REQUESTS))])
    assert torch.equal(logits, before)


class LargeOperations(TorchDispatchMode):
    """Records the names of operators that read a whole batch of logits."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel = numel
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(isinstance(arg, torch.Tensor) and arg.numel() >= self.numel for arg in args):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("params", "absent"),
    [
        ({}, {"sort", "topk"}),
        ({"min_p": 0.1}, {"sort", "topk"}),
        ({"top_k": 5}, {"sort"}),
        ({"top_k": 5, "top_p": 0.5}, {"sort"}),
    ],
)
def test_nothing_is_sorted_that_needs_no_order(params, absent):
    with LargeOperations(4 * 5000) as operations:
        Sampler().sample(torch.randn(4, 5000), [row(**params)] * 4)
    assert "max" in operations.names
    assert not absent & set(operations.names)


def test_a_greedy_batch_is_one_pass_over_the_logits():
    with LargeOperations(4 * 5000) as operations:
        Sampler().sample(torch.randn(4, 5000), [row(temperature=0.0)] * 4)
    assert [name for name in operations.names if name != "to"] == ["max"]  # "to" float32 of float32 copies nothing
