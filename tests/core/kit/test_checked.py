"""The checks name what is wrong, and let what is right through unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pluggy
import pytest
import torch

from baseboard.backends import reference
from baseboard.contract import PROJECT, BackendHooks, ContractError, KVCache
from baseboard.kit.batch_checks import check_batch
from baseboard.kit.checked import CheckedMetadata, checked
from baseboard.kit.instrument import CheckingInstrument
from core.backends.world import Row, World, make_world

BLOCKS, SIZE = 20, 4


def batch(**changes: Any):
    """Two decodes, a chunk and a prefill; 12 tokens in blocks of 4."""
    world = make_world([Row(1, 5), Row(1, 8), Row(3, 6), Row(7, 7)], block_size=SIZE, num_decodes=2)
    world.tables = [np.array(t, np.int32) for t in ([1, 2], [3, 4], [5, 6], [7, 8])]
    return replace(world.batch(), **changes)


def changed(name: str, index: int | tuple[int, int], value: int):
    array = getattr(batch(), name).copy()
    array[index] = value
    return batch(**{name: array})


def test_a_sound_batch_passes() -> None:
    check_batch(batch(), BLOCKS, SIZE)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (batch(seq_lens=batch().seq_lens.astype(np.int64)), "seq_lens: got int64, expected int32"),
        (batch(slot_mapping=batch().slot_mapping.astype(np.int32)), "slot_mapping: got int32, expected int64"),
        (batch(positions=batch().positions[:-1]), r"positions: got shape \[11\], expected shape \[12\]"),
        (batch(block_tables=batch().block_tables[0]), r"block_tables: got shape \[2\], expected shape \[4, 'M'\]"),
        (batch(block_tables=batch().block_tables[:, ::-1]), "block_tables: got strides .* expected a contiguous"),
        (changed("query_start_loc", 0, 1), "query_start_loc: got ends 1 and 12, expected 0 and T=12"),
        (changed("query_start_loc", 4, 11), "query_start_loc: got ends 0 and 11, expected 0 and T=12"),
        (changed("query_start_loc", 2, 1), r"query_start_loc\[1\]: got 0, expected at least one token"),
        (changed("seq_lens", 3, 6), r"seq_lens\[3\]: got 6, expected at least the tokens of this step"),
        (batch(num_decodes=5), "num_decodes: got 5, expected 0 to S=4"),
        (batch(num_decodes=3), r"num_decodes\[2\]: got 3, expected one token"),
        (batch(max_query_len=8), "max_query_len: got 8, expected 7"),
        (batch(max_seq_len=7), "max_seq_len: got 7, expected 8"),
        (changed("block_tables", (2, 1), BLOCKS), r"block_tables\[2\]: got \[ 5 20\], expected ids from 0 to 19"),
        (changed("block_tables", (0, 0), -1), r"block_tables\[0\]"),
        (batch(block_tables=batch().block_tables[:, :1].copy()), "block_tables: got 1 columns, expected at least 2"),
        (changed("slot_mapping", 0, -1), r"slot_mapping\[0\]: got -1, expected slots of the pool"),
        (changed("slot_mapping", 4, BLOCKS * SIZE), r"slot_mapping\[4\]: got 80"),
        (changed("slot_mapping", 5, int(batch().slot_mapping[6])), r"slots \[29\] more than once"),
        (changed("slot_mapping", 5, 70), r"slot_mapping\[5\]: got 70, expected the slot of the position's block"),
        (changed("positions", 11, 7), r"positions\[11\]: got 7, expected the sequence's last ones"),
    ],
)
def test_a_wrong_batch_is_named(wrong, words) -> None:
    with pytest.raises(ContractError, match=words):
        check_batch(wrong, BLOCKS, SIZE)


def test_padding_may_share_slots_of_the_null_block() -> None:
    world = make_world([Row(1, 5), *[Row(1, 1, padding=True)] * 3], block_size=SIZE, num_decodes=4)
    step = world.batch()
    assert (step.slot_mapping[1:] == 0).all()
    check_batch(step, world.num_blocks, SIZE)


class Recorder:
    """A kernel that does nothing but remember that it was called; its result is what it is told."""

    def __init__(self, result: torch.Tensor) -> None:
        self.result = result
        self.calls: list[tuple[str, object]] = []

    def write(self, key, value, layer, metadata) -> None:
        self.calls.append(("write", metadata))

    def attend(self, query, layer, metadata, out=None) -> torch.Tensor:
        self.calls.append(("attend", metadata))
        return self.result


WORLD = make_world([Row(1, 5), Row(2, 6)], "bfloat16", head_size_v=24, num_decodes=1)
STEP = CheckedMetadata("inner", 3, torch.device("cpu"))
GOOD = {
    "key": torch.zeros(3, 2, 16, dtype=torch.bfloat16),
    "value": torch.zeros(3, 2, 24, dtype=torch.bfloat16),
    "query": torch.zeros(3, 4, 16, dtype=torch.bfloat16),
    "out": torch.zeros(3, 4, 24, dtype=torch.bfloat16),
}


def call(kernel: Recorder, tensors: dict[str, torch.Tensor], metadata: object = STEP) -> torch.Tensor:
    wrapped = checked(kernel, WORLD.spec, WORLD.kv)
    wrapped.write(tensors["key"], tensors["value"], "layer", metadata)
    return wrapped.attend(tensors["query"], "layer", metadata, tensors["out"])


def test_sound_tensors_pass() -> None:
    kernel = Recorder(GOOD["out"])
    wide = torch.zeros(3, 8, 16, dtype=torch.bfloat16)
    assert call(kernel, GOOD | {"key": wide[:, :2], "query": wide[:, 4:]}) is GOOD["out"]
    assert kernel.calls == [("write", "inner"), ("attend", "inner")]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[:2], r"got shape \[2, "),
        (lambda x: x[:, :1], r"got shape \[3, 1, "),
        (lambda x: x[..., :-1], r"expected shape \[3, "),
        (lambda x: x.float(), "got torch.float32, expected torch.bfloat16"),
        (lambda x: x.to("meta"), "got a tensor on meta, expected one on cpu"),
        (lambda x: x.transpose(0, 2).contiguous().transpose(0, 2), "expected a contiguous last dimension"),
    ],
)
def test_a_wrong_tensor_is_named(name, change, words) -> None:
    kernel = Recorder(GOOD["out"])
    with pytest.raises(ContractError, match=f"^{name}: .*{words}"):
        call(kernel, GOOD | {name: change(GOOD[name])})
    assert len(kernel.calls) == int(name in {"query", "out"})


def test_a_wrong_result_is_named() -> None:
    with pytest.raises(ContractError, match=r"result of attend: got torch\.float32"):
        call(Recorder(GOOD["out"].float()), GOOD)


def test_other_metadata_is_refused() -> None:
    with pytest.raises(ContractError, match=r"metadata: got a object, expected what CheckedMetadata\.of made"):
        call(Recorder(GOOD["out"]), GOOD, object())


class Hooks:
    """A backend's hooks called through pluggy, with the instrument around them."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(BackendHooks)
        self.manager.register(reference.open_backend(reference.probe_devices()[0], {}))
        self.manager.register(CheckingInstrument())
        self.manager.check_pending()

    def __getattr__(self, name: str) -> Any:
        names = {
            "allocate_kv_cache": ("spec", "num_blocks"),
            "attention_kernel": ("attention", "kv"),
            "build_attention_metadata": ("batch", "cache"),
        }[name]
        return lambda *values: getattr(self.manager.hook, name)(**dict(zip(names, values, strict=True)))


@pytest.fixture
def world() -> World:
    return make_world([Row(1, 5), Row(3, 6)], num_decodes=1)


def test_the_instrument_changes_nothing(world) -> None:
    world.check(world.run(Hooks(), torch.nan))


def test_the_instrument_checks_batches_and_tensors(world) -> None:
    hooks = Hooks()
    cache: KVCache = hooks.allocate_kv_cache(world.kv, world.num_blocks)
    with pytest.raises(ContractError, match="num_decodes"):
        hooks.build_attention_metadata(replace(world.batch(), num_decodes=2), cache)
    made = hooks.build_attention_metadata(world.batch(), cache)
    kernel = hooks.attention_kernel(world.spec, world.kv)
    with pytest.raises(ContractError, match=r"query: got shape \[3, 4, 16\], expected shape \[4, 4, 16\]"):
        kernel.attend(torch.zeros(3, 4, 16), cache.layer(0), made)
