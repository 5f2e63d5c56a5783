"""What several end-to-end tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from baseboard.engine.results import RequestOutput
from baseboard.runtime.model_quiet import quiet_transformers

NEW_TOKENS = 10
MANY_TOKENS = 24
NUM_SHORT = 12


def tokens_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def greedy(model: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """transformers' ``generate``: each prompt alone, ``new_tokens`` tokens whatever they are."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode(), quiet_transformers():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        found.append(out[0, len(prompt) :].tolist())
    return found
