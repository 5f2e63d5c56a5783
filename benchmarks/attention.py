"""Attention of the CPU backend beside torch's SDPA, vLLM's kernel where there is one, and the machine's own ceilings.

    python benchmarks/attention.py [--json] [--peer-python PATH] [--threads N] [--rounds N] [--only TEXT]

Contestants alternate within each round; figures are medians of the rounds. The workers of an OpenMP runtime spin for a
while after their work, Intel's for 200 ms: before each turn the other process's are left to fall asleep. A turn's own
workers wake on whatever core the system chooses and are moved apart some milliseconds later: the calls of a turn's first
50 ms do not count, of those of the next 50 ms the median does. ``of_ceiling`` compares with what this run measured: the read
bandwidth for decode, the matrix product's rate in the same dtype for prefill. The peer's interpreter needs vllm (CPU
build) and numpy; see ``benchmarks/attention_vllm.py``, which runs in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import baseboard_cpu_avx512
from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from baseboard.kit.dtypes import torch_dtype

BLOCK_SIZE = 32
SWAPPED = 256
SPINNING = 0.25  # seconds that workers of another process may spin for
TURN = 0.05  # seconds of calls that do not count, and then of calls that do


@dataclass(frozen=True)
class Shape:
    name: str
    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    dtype: str
    heads: tuple[int, int] = (32, 8)
    head_size: int = 128
    kv_dtype: str = "auto"

    @property
    def nbytes(self) -> int:
        """Keys and values that must be read once."""
        row = self.head_size * torch_dtype(self.dtype).itemsize if self.kv_dtype == "auto" else self.head_size + 4
        return 2 * sum(self.contexts) * self.heads[1] * row

    @property
    def flop(self) -> int:
        pairs = sum(q * (c - q) + q * (q + 1) // 2 for q, c in zip(self.queries, self.contexts, strict=True))
        return 4 * self.heads[0] * self.head_size * pairs

    @property
    def decodes(self) -> bool:
        return max(self.queries) == 1


def shapes() -> list[Shape]:
    made = []
    for dtype in ("bfloat16", "float32", "float16"):
        made += [
            Shape("decode 32 x 1024", (1,) * 32, (1024,) * 32, dtype),
            Shape("decode 1 x 16384", (1,), (16384,), dtype),
            Shape("decode 32 x 512, 9/3, 64", (1,) * 32, (512,) * 32, dtype, (9, 3), 64),
            Shape("prefill 1 x 1024", (1024,), (1024,), dtype),
            Shape("256 new at 4096", (256,), (4096,), dtype),
            Shape("16 x 1024 + prefill 512", (1,) * 16 + (512,), (1024,) * 16 + (512,), dtype),
        ]
    return [*made, Shape("decode 1 x 16384", (1,), (16384,), "bfloat16", kv_dtype="int8")]


class Ours:
    """The shape in a paged cache whose blocks lie in random order."""

    def __init__(self, backend: Any, shape: Shape) -> None:
        heads, kv_heads = shape.heads
        spec = AttentionSpec(heads, kv_heads, shape.head_size, shape.head_size**-0.5)
        kv = KVCacheSpec(1, kv_heads, shape.head_size, shape.head_size, shape.dtype, BLOCK_SIZE, shape.kv_dtype)  # type: ignore[arg-type]
        columns = [-(-context // BLOCK_SIZE) for context in shape.contexts]
        order = np.random.default_rng(0).permutation(sum(columns)) + 1
        self.tables = np.zeros((len(columns), max(columns)), np.int32)
        for row, blocks in enumerate(np.split(order, np.cumsum(columns)[:-1])):
            self.tables[row, : len(blocks)] = blocks
        cache = backend.allocate_kv_cache(kv, len(order) + 1)
        self.kernel, self.layer = backend.attention_kernel(spec, kv), cache.layer(0)
        rows = torch.randn(sum(shape.contexts), kv_heads, shape.head_size).to(torch_dtype(shape.dtype))
        everything = backend.build_attention_metadata(self.batch(shape.contexts, shape.contexts), cache)
        self.kernel.write(rows, rows, self.layer, everything)
        self.metadata = backend.build_attention_metadata(self.batch(shape.queries, shape.contexts), cache)
        self.query = torch.randn(sum(shape.queries), heads, shape.head_size).to(torch_dtype(shape.dtype))
        self.out = torch.empty_like(self.query)

    def batch(self, queries: Sequence[int], contexts: Sequence[int]) -> StepBatch:
        spans = [np.arange(c - q, c) for q, c in zip(queries, contexts, strict=True)]
        slots = [
            self.tables[s, span // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + span % BLOCK_SIZE
            for s, span in enumerate(spans)
        ]
        return StepBatch(
            query_start_loc=np.concatenate([[0], np.cumsum(queries)]).astype(np.int32),
            seq_lens=np.array(contexts, np.int32),
            block_tables=self.tables,
            slot_mapping=np.concatenate(slots),
            positions=np.concatenate(spans),
            num_decodes=sum(q == 1 for q in queries),
            max_query_len=max(queries),
            max_seq_len=max(contexts),
        )

    def __call__(self) -> None:
        self.kernel.attend(self.query, self.layer, self.metadata, self.out)


class Sdpa:
    """Torch's kernel on dense keys and values, one call for each run of sequences that are alike."""

    def __init__(self, shape: Shape) -> None:
        heads, kv_heads = shape.heads
        dtype = torch_dtype(shape.dtype)
        self.calls: list[Callable[[], torch.Tensor]] = []
        alike: dict[tuple[int, int], int] = {}
        for pair in zip(shape.queries, shape.contexts, strict=True):
            alike[pair] = alike.get(pair, 0) + 1
        for (new, context), count in alike.items():
            query = torch.randn(count, heads, new, shape.head_size).to(dtype)
            key = torch.randn(count, kv_heads, context, shape.head_size).to(dtype)
            self.calls.append(self._call(query, key, key.clone()))

    @staticmethod
    def _call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        new, context = query.shape[2], key.shape[2]
        options: dict[str, Any] = {"enable_gqa": True, "is_causal": new == context}
        if 1 < new < context:
            options["attn_mask"] = torch.ones(new, context, dtype=torch.bool).tril(context - new)
        return lambda: scaled_dot_product_attention(query, key, value, **options)

    def __call__(self) -> None:
        for call in self.calls:
            call()


class Peer:
    """vLLM's kernel in its own interpreter: told a shape, then to run it, over a pipe."""

    def __init__(self, python: str, threads: int) -> None:
        script = Path(__file__).with_name("attention_vllm.py")
        command = [python, str(script), str(threads), str(TURN)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def prepare(self, shape: Shape) -> None:
        self._ask(asdict(shape) | {"block_size": BLOCK_SIZE})

    def seconds(self) -> float:
        time.sleep(SPINNING)
        return self._ask(None)

    def _ask(self, message: object) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def turn(call: Callable[[], object], peer: Peer | None) -> float:
    if peer is not None:
        time.sleep(SPINNING)
    spend(call)
    return statistics.median(spend(call))


def spend(call: Callable[[], object]) -> list[float]:
    """Seconds of each call, as many as fill ``TURN``; at least one."""
    took = [seconds(call)]
    while sum(took) < TURN:
        took.append(seconds(call))
    return took


def ceilings(rounds: int) -> dict[str, float]:
    """Bytes or floating-point operations a second that this machine gives now."""
    big = torch.zeros(1 << 26)
    copy = torch.empty_like(big)
    found = {
        "read": big.nbytes / best(big.sum, rounds),
        "copy": big.nbytes / best(lambda: copy.copy_(big), rounds),
    }
    for name in ("float32", "bfloat16", "float16"):
        square = torch.randn(2048, 2048).to(torch_dtype(name))
        found[name] = 2 * 2048**3 / best(lambda x=square: x @ x, rounds)
    return found


def best(call: Callable[[], object], rounds: int) -> float:
    call()
    return min(seconds(call) for _ in range(rounds))


def compare(shape: Shape, backend: Any, peer: Peer | None, rounds: int, limits: Mapping[str, float]) -> dict[str, Any]:
    contestants: dict[str, Callable[[], float]] = {}
    for name, call in (("ours", Ours(backend, shape)), ("sdpa", Sdpa(shape))):
        contestants[name] = lambda call=call: turn(call, peer)
    if peer is not None and shape.kv_dtype == "auto":
        peer.prepare(shape)
        contestants["vllm"] = peer.seconds
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            times[name].append(contestant())
    median = {name: statistics.median(values) for name, values in times.items()}
    ours = median["ours"]
    ceiling = shape.nbytes / limits["read"] if shape.decodes else shape.flop / limits[shape.dtype]
    return {
        "shape": shape.name,
        "dtype": shape.dtype if shape.kv_dtype == "auto" else f"{shape.dtype}, {shape.kv_dtype} KV",
        "ms": ours * 1e3,
        "ms_least": min(times["ours"]) * 1e3,
        "gb_s": shape.nbytes / ours / 1e9,
        "gflop_s": shape.flop / ours / 1e9,
        "of_ceiling": ceiling / ours,
        "vs_sdpa": median["sdpa"] / ours,
        "vs_vllm": median["vllm"] / ours if "vllm" in median else None,
    }


def swapping(backend: Any, rounds: int, limits: Mapping[str, float]) -> dict[str, Any]:
    """256 blocks of SmolLM2's size out and in; and what share of the time the caller was held up."""
    spec = KVCacheSpec(30, 3, 64, 64, "bfloat16", BLOCK_SIZE)
    cache = backend.allocate_kv_cache(spec, SWAPPED + 1)
    host = backend.allocate_host_kv_cache(cache, SWAPPED)
    out = np.stack((np.arange(1, SWAPPED + 1), np.arange(SWAPPED)), axis=1)
    blocked: list[float] = []
    took: list[float] = []
    home = np.ascontiguousarray(out[:, ::-1])
    for _ in range(rounds + 1):
        began = time.perf_counter()
        backend.swap_blocks(cache, host, out)
        back = backend.swap_blocks(host, cache, home)
        blocked.append(time.perf_counter() - began)
        back.wait()
        took.append(time.perf_counter() - began)
    ours = statistics.median(took[1:])
    rate = 2 * SWAPPED * backend.kv_block_nbytes(spec) / ours
    return {
        "shape": f"swap {SWAPPED} blocks out and in",
        "dtype": "bfloat16",
        "ms": ours * 1e3,
        "ms_least": min(took) * 1e3,
        "gb_s": rate / 1e9,
        "gflop_s": None,
        "of_ceiling": rate / limits["copy"],
        "vs_sdpa": None,
        "vs_vllm": None,
        "blocked": statistics.median(blocked[1:]) / ours,
    }


def open_backend(threads: int) -> Any:
    (device,) = baseboard_cpu_avx512.probe_devices()
    torch.set_num_threads(threads)
    return baseboard_cpu_avx512.open_backend(device, {})


def show(row: Mapping[str, Any]) -> str:
    def number(key: str, pattern: str) -> str:
        return format(row[key], pattern) if row.get(key) is not None else "-"

    figures = [
        number("ms", "9.3f"),
        number("gb_s", "7.1f"),
        number("gflop_s", "8.1f"),
        number("of_ceiling", "8.0%"),
        number("vs_sdpa", "8.2f"),
        number("vs_vllm", "8.2f"),
    ]
    return f"{row['shape']:26} {row['dtype']:18} {' '.join(figures)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer-python", help="interpreter with vllm for CPU")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="shapes whose name or dtype has this in it")
    options = parser.parse_args()
    backend = open_backend(options.threads)
    limits = ceilings(options.rounds)
    peer = Peer(options.peer_python, options.threads) if options.peer_python else None
    if not options.json:
        print(", ".join(f"{name} {value / 1e9:.1f} G/s" for name, value in limits.items()))
        print(
            f"{'shape':26} {'dtype':18} {'ms':>9} {'GB/s':>7} {'GFLOP/s':>8} {'ceiling':>8} {'x SDPA':>8} {'x vLLM':>8}"
        )
    wanted = [shape for shape in shapes() if options.only in f"{shape.name} {shape.dtype} {shape.kv_dtype}"]
    rows = (compare(shape, backend, peer, options.rounds, limits) for shape in wanted)
    for row in [*rows] if options.json else rows:
        print(json.dumps(row) if options.json else show(row), flush=True)
    row = swapping(backend, options.rounds, limits)
    print(json.dumps(row) if options.json else f"{show(row)}   caller held up {row['blocked']:.0%} of the time")
    if peer is not None:
        peer.close()
    backend.close()


if __name__ == "__main__":
    main()
