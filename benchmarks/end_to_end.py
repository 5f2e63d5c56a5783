"""Figures of the whole: start to first token, memory, the step's own overhead, tokens a second beside transformers.

    python benchmarks/end_to_end.py [--json] [--backend NAME] [--rounds N]

Ratios come from one run in which ours and the peer alternate; medians of ``--rounds`` rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from baseboard import SamplingParams
from baseboard.engine.build import Built
from baseboard.kit.process_memory import ProcessMemory
from baseboard.llm import LLM

BATCH = 8
PROMPT = 128
NEW = 64
BLOCKS = 1024


def start_to_first_token(backend: str) -> tuple[float, LLM]:
    began = time.perf_counter()
    llm = LLM("smollm2", backend=backend, num_kv_blocks=BLOCKS)
    llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1))
    return time.perf_counter() - began, llm


def prompts(count: int, length: int) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": [(7 * i + 13 * at + 5) % 40000 for i in range(length)]} for at in range(count)]


def overhead(llm: LLM) -> float:
    """Share of a decode step at batch 8 that is not the model's forward pass."""
    built: Built = llm.built
    forward, inside = built.model.forward, [0.0]

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        logits = forward(*arguments)
        inside[0] += time.perf_counter() - began
        return logits

    built.model.forward = timed  # type: ignore[method-assign]
    try:
        greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
        began = time.perf_counter()
        llm.generate(prompts(BATCH, 16), greedy)
        return 1 - inside[0] / (time.perf_counter() - began)
    finally:
        built.model.forward = forward  # type: ignore[method-assign]


def ours(llm: LLM, count: int) -> float:
    greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    llm.reset_prefix_cache()
    began = time.perf_counter()
    llm.generate(prompts(count, PROMPT), greedy)
    return count * NEW / (time.perf_counter() - began)


def theirs(model: Any, count: int) -> float:
    ids = torch.tensor([prompt["prompt_token_ids"] for prompt in prompts(count, PROMPT)])
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
        )
    return count * NEW / (time.perf_counter() - began)


def peer() -> Any:
    from baseboard.runtime.model_quiet import quiet_transformers
    from baseboard.runtime.sources import resolve_model

    source = resolve_model("smollm2")
    with quiet_transformers():
        return transformers.AutoModelForCausalLM.from_pretrained(
            source.path,
            gguf_file=source.gguf_file,
            dtype=torch.bfloat16,
            quantization_config=transformers.GgufConfig(dequantize=True),
        ).eval()


def alternate(rounds: int, mine: Callable[[], float], other: Callable[[], float]) -> dict[str, float]:
    pairs = [(mine(), other()) for _ in range(rounds)]
    return {
        "ours_tok_s": statistics.median(a for a, _ in pairs),
        "transformers_tok_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def measure(backend: str, rounds: int) -> dict[str, Any]:
    seconds, llm = start_to_first_token(backend)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = llm.built.memory
    allowed = int(memory.weights * 1.3 + memory.kv_cache + 300e6)
    results: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "backend": llm.built.backend.name,
        "start_to_first_token_s": seconds,
        "peak_bytes": peak,
        "peak_bytes_after_imports": peak - IMPORTED,
        "allowed_bytes": allowed,
        "overhead_batch_8": statistics.median(overhead(llm) for _ in range(rounds)),
    }
    model = peer()
    for count in (1, BATCH):
        results[f"decode_{count}"] = alternate(rounds, lambda n=count: ours(llm, n), lambda n=count: theirs(model, n))
    llm.close()
    return results


#: What the interpreter, torch and transformers take before any engine exists.
IMPORTED = ProcessMemory().read().current


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    results = measure(arguments.backend, arguments.rounds)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for name, value in results.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
