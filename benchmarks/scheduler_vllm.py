"""vLLM's scheduler for ``scheduler.py``: runs in an interpreter that has vllm, spoken to in JSON lines.

A number of requests adds them and computes their prompts; a number of steps makes that many. Each answer is seconds: to
add one request, or a step's, a list. Imports nothing of Baseboard.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from transformers import LlamaConfig
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
PROMPT = 128
BLOCKS = 200_000


class Theirs:
    def __init__(self, requests: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shape = LlamaConfig(
                vocab_size=49152, hidden_size=576, num_attention_heads=9, num_key_value_heads=3, num_hidden_layers=1
            )
            shape.architectures = ["LlamaForCausalLM"]
            shape.save_pretrained(Path(folder))
            config = EngineArgs(
                model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2048, max_num_seqs=requests,
                max_num_batched_tokens=1 << 20, enable_prefix_caching=True, block_size=BLOCK,
            ).create_engine_config()  # fmt: skip
        config.cache_config.num_gpu_blocks = BLOCKS
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)
        cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["0"], spec)])
        self._scheduler = Scheduler(
            vllm_config=config, kv_cache_config=cache, structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK, hash_block_size=BLOCK, log_stats=False,
        )  # fmt: skip
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def add(self, requests: int) -> float:
        began = time.perf_counter()
        for number in range(requests):
            prompt = [(number * 131 + at) % 49_000 for at in range(PROMPT)]
            params = SamplingParams(max_tokens=100_000, ignore_eos=True, temperature=0)
            self._scheduler.add_request(
                Request(
                    request_id=str(number), prompt_token_ids=prompt, sampling_params=params, pooling_params=None,
                    block_hasher=self._hasher,
                )
            )  # fmt: skip
        added = time.perf_counter() - began
        self.step()
        return added / requests

    def step(self) -> float:
        began = time.perf_counter()
        plan = self._scheduler.schedule()
        planned = time.perf_counter() - began
        ids = list(plan.num_scheduled_tokens)
        result: Any = ModelRunnerOutput(
            req_ids=ids, req_id_to_index=dict(zip(ids, count(), strict=False)), sampled_token_ids=[[7] for _ in ids],
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        )  # fmt: skip
        began = time.perf_counter()
        self._scheduler.update_from_output(plan, result)
        return planned + time.perf_counter() - began


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vllm prints is no answer
    theirs: Theirs | None = None
    for line in sys.stdin:
        message = json.loads(line)
        if theirs is None:
            theirs = Theirs(message)
            answer: object = theirs.add(message)
        else:
            answer = [theirs.step() for _ in range(message)]
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
