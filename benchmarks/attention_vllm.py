"""vLLM's CPU attention kernel for ``attention.py``: runs in an interpreter that has vllm, spoken to in JSON lines.

A shape prepares it, ``null`` runs it: for as long as the second argument says, and as long again; the answer is the
median of the latter runs' seconds. Imports nothing of Baseboard.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = sys.argv[1]

import torch  # the number of threads must be known before
import vllm._custom_ops as ops  # pyright: ignore[reportMissingImports]
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # pyright: ignore[reportMissingImports]


def prepare(shape: dict) -> Callable[[], None]:
    block, size = shape["block_size"], shape["head_size"]
    heads, kv_heads = shape["heads"]
    queries, contexts = shape["queries"], shape["contexts"]
    dtype = getattr(torch, shape["dtype"])
    columns = [-(-context // block) for context in contexts]
    order = (torch.randperm(sum(columns)) + 1).int()
    tables = torch.zeros(len(columns), max(columns), dtype=torch.int32)
    for row, blocks in enumerate(order.split(columns)):
        tables[row, : len(blocks)] = blocks
    caches = [torch.randn(len(order) + 1, kv_heads, block, size).to(dtype) for _ in range(2)]
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    lengths = torch.tensor(contexts, dtype=torch.int32)
    query = torch.randn(sum(queries), heads, size).to(dtype)
    out = torch.empty_like(query)
    layout = _get_attn_isa(dtype, block, size)  # what vLLM itself takes on this machine
    plan = ops.cpu_attn_get_scheduler_metadata(
        len(queries), heads, kv_heads, size, lengths, dtype, starts, True, -1, layout, True
    )

    def run() -> None:
        ops.cpu_attention_with_kv_cache(
            query, *caches, out, starts, lengths, size**-0.5, True, None, -1, tables, 0.0, plan, None
        )

    return run


def spend(run: Callable[[], None], turn: float) -> list[float]:
    took: list[float] = []
    while sum(took) < turn:
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return took


def main() -> None:
    turn = float(sys.argv[2])
    current_platform.import_kernels()
    torch.cpu._init_amx()  # noqa: SLF001  # vLLM leaves asking for the tiles to its first matrix product
    run: Callable[[], None] | None = None
    for line in sys.stdin:
        shape = json.loads(line)
        if shape is not None:
            run = prepare(shape)
        assert run is not None, "the first message is a shape"
        spend(run, turn)
        print(statistics.median(spend(run, turn)), flush=True)


if __name__ == "__main__":
    main()
