"""Of the real IPEX only: how it is loaded, how far it reaches, and what a whole model says on it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from baseboard.llm import LLM
from baseboard.runtime.loader import load_model
from baseboard.runtime.sources import resolve_model
from baseboard_cpu_avx512.ipex.installation import load_operators
from plugins.cpu_avx512.conftest import LEVELS, open_at
from plugins.cpu_avx512.test_end_to_end import generate


@pytest.fixture(scope="module")
def real():
    opened = open_at(LEVELS[-1], kernels="ipex")
    yield opened
    opened.close()


def test_its_library_is_loaded_and_not_its_package() -> None:
    """On torch's own OpenMP runtime: a second one's threads would spin against torch's."""
    code = """
import sys
from baseboard.discovery import open_backend
backend = open_backend("cpu_avx512:ipex")
assert "intel_extension_for_pytorch" not in sys.modules
lines = open("/proc/self/maps").read().splitlines()
assert any("libintel-ext-pt-cpu" in line for line in lines)
runtimes = {line.split("/")[-1] for line in lines if "omp" in line.split("/")[-1]}
assert len(runtimes) == 1, runtimes
backend.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


@pytest.mark.parametrize("first", [65_533, 131_068])
def test_offsets_beyond_four_gigabytes(real, first) -> None:
    """The same sequence at the start of a pool, across byte 2^31 and across element 2^31: bit-identical."""
    spec, kv = AttentionSpec(8, 8, 128, 0.1), KVCacheSpec(1, 8, 128, 128, "bfloat16", 16)
    cache = real.allocate_kv_cache(kv, 131_080)
    kernel = real.attention_kernel(spec, kv)
    generator = torch.Generator().manual_seed(1)
    key, value, query = (torch.randn(128, 8, 128, generator=generator).bfloat16() for _ in range(3))
    results = []
    for blocks in (np.arange(8, 16), np.arange(first, first + 8)):
        batch = StepBatch(
            query_start_loc=np.array([0, 128], np.int32),
            seq_lens=np.array([128], np.int32),
            block_tables=blocks[None].astype(np.int32),
            slot_mapping=(blocks[:, None] * 16 + np.arange(16)).ravel().astype(np.int64),
            positions=np.arange(128),
            num_decodes=0,
            max_query_len=128,
            max_seq_len=128,
        )
        made = real.build_attention_metadata(batch, cache)
        kernel.write(key, value, cache.layer(0), made)
        results.append(kernel.attend(query, cache.layer(0), made))
    assert results[0].any()
    assert torch.equal(*results)


def test_no_other_operator_has_come_in_its_place() -> None:
    """The schemas that the adapter fills by position."""
    types = {
        "reshape_and_cache": "TTTTTsff",
        "single_query_cached_kv_attention": "TTTTTfTTiiTifff",
        "flash_attn_varlen_func": "TTTTTTiifbTTiisfff",
    }
    letters = {"Tensor": "T", "Optional[Tensor]": "T", "float": "f", "int": "i", "SymInt": "i", "str": "s", "bool": "b"}
    for name, expected in types.items():
        schema = getattr(load_operators(), name).default._schema
        assert "".join(letters[str(argument.type)] for argument in schema.arguments) == expected


def test_greedy_tokens_are_those_of_the_reference() -> None:
    model = load_model(resolve_model("smollm2"), "float32", "cpu")
    expected = generate(model, "reference")
    assert generate(model, "cpu_avx512:ipex") == expected
    few = {"num_kv_blocks": 27, "num_host_blocks": 40, "block_size": 8, "preemption": "swap"}
    assert generate(model, "cpu_avx512:ipex", 1, max_num_batched_tokens=64, **few) == expected


def test_auto_does_not_take_it() -> None:
    model = load_model(resolve_model("smollm2"), "float32", "cpu")
    with LLM(model, dtype="float32", num_kv_blocks=16) as llm:
        assert "alibi" in llm.built.backend.capabilities.features
