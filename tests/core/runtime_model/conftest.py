"""A tiny engine: runs sequences in steps through a LoadedModel, with an attention kernel that is plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from baseboard.contract import AttentionSpec, KVCacheSpec, StepBatch
from baseboard.runtime.attention_bridge import LayerBinding
from baseboard.runtime.model_loaded import LoadedModel

BLOCK_SIZE = 4


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class SlotMemory:
    """One layer's cache: slots of keys and values; what was never written is poison."""

    def __init__(self, spec: KVCacheSpec, num_slots: int) -> None:
        self.keys = np.full((num_slots, spec.num_kv_heads, spec.head_size), np.nan, np.float32)
        self.values = np.full((num_slots, spec.num_kv_heads, spec.head_size_v), np.nan, np.float32)


class PlainKernel:
    """The contract's formula, query by query."""

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: SlotMemory, metadata: StepBatch) -> None:
        layer.keys[metadata.slot_mapping] = key.float().numpy()
        layer.values[metadata.slot_mapping] = value.float().numpy()

    def attend(
        self, query: torch.Tensor, layer: SlotMemory, metadata: StepBatch, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        queries = query.float().numpy()
        result = np.zeros((*queries.shape[:2], layer.values.shape[-1]), np.float32)
        for sequence in range(metadata.num_seqs):
            blocks = metadata.block_tables[sequence]
            slots = (blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).ravel()
            start, stop = metadata.query_start_loc[sequence : sequence + 2]
            first_position = metadata.seq_lens[sequence] - (stop - start)
            for row in range(start, stop):
                position = first_position + row - start
                begin = 0 if self._spec.sliding_window is None else max(0, position - self._spec.sliding_window + 1)
                visible = slots[begin : position + 1]
                result[row] = self._one(queries[row], layer.keys[visible], layer.values[visible])
        return torch.from_numpy(result).to(query.dtype)

    def _one(self, query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        spec = self._spec
        attended = np.zeros((spec.num_heads, values.shape[-1]), np.float32)
        for head in range(spec.num_heads):
            kv_head = head // (spec.num_heads // spec.num_kv_heads)
            x = spec.scale * (keys[:, kv_head] @ query[head])
            if spec.softcap is not None:
                x = spec.softcap * np.tanh(x / spec.softcap)
            top = max(x.max(), -np.inf if spec.sinks is None else spec.sinks[head])
            weights = np.exp(x - top)
            extra = 0.0 if spec.sinks is None else np.exp(spec.sinks[head] - top)
            attended[head] = weights @ values[:, kv_head] / (weights.sum() + extra)
        return attended


@dataclass
class Sequence:
    token_ids: list[int]
    blocks: list[int]
    num_computed: int = 0


class Driver:
    """Owner of the caches and the sequences; one call of ``step`` is one packed forward pass."""

    def __init__(self, model: LoadedModel, num_blocks: int = 64) -> None:
        self.model = model
        self.sequences: dict[str, Sequence] = {}
        self._free = list(range(num_blocks - 1, 0, -1))
        self._groups = model.groups(BLOCK_SIZE)
        bindings: dict[int, LayerBinding] = {}
        for number, group in enumerate(self._groups):
            for index in group.layers:
                kernel: Any = PlainKernel(model.layers[index].attention)
                bindings[index] = LayerBinding(kernel, SlotMemory(group.spec, num_blocks * BLOCK_SIZE), number)
        model.bridge.bind([bindings[index] for index in sorted(bindings)])

    def add(self, name: str, token_ids: list[int]) -> None:
        self.sequences[name] = Sequence(list(token_ids), [])

    def step(self, counts: dict[str, int]) -> dict[str, torch.Tensor]:
        """Compute the next ``counts`` tokens of each sequence (decodes first); logits ``[count, V]`` by name."""
        batch = self._batch(counts)
        token_ids = [
            t
            for name, n in counts.items()
            for t in self._sequence(name).token_ids[self._sequence(name).num_computed :][:n]
        ]
        with self.model.bridge.step([batch] * len(self._groups)):
            logits = self.model.forward(
                torch.tensor(token_ids), torch.from_numpy(batch.positions), torch.arange(len(token_ids))
            )
        for name, n in counts.items():
            self._sequence(name).num_computed += n
        return dict(zip(counts, logits.split(list(counts.values())), strict=True))

    def _sequence(self, name: str) -> Sequence:
        return self.sequences[name]

    def _batch(self, counts: dict[str, int]) -> StepBatch:
        positions, slots, tables, lengths = [], [], [], []
        for name, n in counts.items():
            sequence = self._sequence(name)
            length = sequence.num_computed + n
            while len(sequence.blocks) * BLOCK_SIZE < length:
                # From both ends in turn, so that a sequence's blocks never lie in order.
                sequence.blocks.append(self._free.pop(-1 if len(sequence.blocks) % 2 else 0))
            new = range(sequence.num_computed, length)
            positions += new
            slots += [sequence.blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in new]
            tables.append(sequence.blocks)
            lengths.append(length)
        width = max(map(len, tables))
        return StepBatch(
            query_start_loc=np.cumsum([0, *counts.values()], dtype=np.int32),
            seq_lens=np.array(lengths, np.int32),
            block_tables=np.array([t + [0] * (width - len(t)) for t in tables], np.int32),
            slot_mapping=np.array(slots, np.int64),
            positions=np.array(positions, np.int64),
            num_decodes=sum(n == 1 for n in counts.values()),
            max_query_len=max(counts.values()),
            max_seq_len=max(lengths),
        )


@pytest.fixture
def drive() -> Callable[[LoadedModel], Driver]:
    return Driver
