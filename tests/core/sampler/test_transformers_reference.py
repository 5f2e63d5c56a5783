"""The same filters as transformers' own logits processors, an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from baseboard.runtime.sampler import edited_logits
from baseboard.runtime.sampling_filters import kept_weights
from core.sampler.oracle import row

CHAINS = {
    "temperature": ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
    "top_k": ({"top_k": 7}, [TopKLogitsWarper(7)]),
    "top_p": ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
    "min_p": ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    "repetition": ({"repetition_penalty": 1.3}, [RepetitionPenaltyLogitsProcessor(1.3)]),
    "all": (
        {"repetition_penalty": 1.2, "temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
        [
            RepetitionPenaltyLogitsProcessor(1.2),
            TemperatureLogitsWarper(1.5),
            TopKLogitsWarper(40),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.05),
        ],
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_same_distribution_as_transformers(name):
    params, processors = CHAINS[name]
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(8, 2000, generator=generator) * 3
    history = torch.randint(2000, (8, 30), generator=generator)
    rows = [row(ids[:20], ids[20:], **params) for ids in history.tolist()]

    weights = kept_weights(edited_logits(logits, rows), [r.params for r in rows])

    expected = LogitsProcessorList(processors)(history, logits.clone()).double().softmax(-1).numpy()
    actual = (weights / weights.sum(-1, keepdim=True)).numpy()
    np.testing.assert_array_equal(actual > 0, expected > 0)
    np.testing.assert_allclose(actual, expected, rtol=2e-5)
