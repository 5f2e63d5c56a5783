"""The bridge hands each layer's states to its own kernel, within a step and never outside one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from baseboard.contract import ContractError
from baseboard.runtime.attention_bridge import AttentionBridge, AttentionCall, LayerBinding, attached, packed_attention
from baseboard.runtime.loader import wrap_model
from families import build


class Spy:
    """A kernel that notes what it is given and answers the query's own values."""

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []
        self.attended: list[tuple[Any, ...]] = []

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: Any, metadata: Any) -> None:
        self.written.append((key, value, layer, metadata))

    def attend(self, query: torch.Tensor, layer: Any, metadata: Any, out: Any = None) -> torch.Tensor:
        self.attended.append((query, layer, metadata))
        return query.transpose(0, 1).contiguous().transpose(0, 1)


def states(num_heads: int) -> torch.Tensor:
    return torch.randn(1, 5, num_heads, 8).transpose(1, 2)


def test_each_layer_reaches_its_kernel_with_its_groups_metadata() -> None:
    modules = [nn.Identity() for _ in range(3)]
    spies = [Spy() for _ in modules]
    bridge = AttentionBridge(modules)
    bridge.bind([LayerBinding(spies[i], f"layer {i}", group) for i, group in enumerate((0, 1, 0))])
    query, key, value = states(4), states(2), states(2)
    with bridge.step(["metadata 0", "metadata 1"]):
        out, weights = packed_attention(modules[1], query, key, value, None, scaling=0.1, dropout=0.0)
    assert weights is None
    torch.testing.assert_close(out, query.transpose(1, 2))
    assert out.is_contiguous()
    ((got_key, got_value, layer, metadata),) = spies[1].written
    assert (layer, metadata) == ("layer 1", "metadata 1")
    assert got_key.shape == got_value.shape == (5, 2, 8)
    assert got_key.data_ptr() == key.data_ptr()  # a view
    ((got_query, layer, metadata),) = spies[1].attended
    assert (got_query.shape, layer, metadata) == ((5, 4, 8), "layer 1", "metadata 1")
    assert not spies[0].written
    assert not spies[2].written


def test_a_strided_last_dimension_is_made_contiguous() -> None:
    module, spy = nn.Identity(), Spy()
    bridge = AttentionBridge([module])
    bridge.bind([LayerBinding(spy, None, 0)])
    strided = torch.randn(1, 2, 8, 5).transpose(2, 3)
    with bridge.step([object()]):
        packed_attention(module, strided, strided, strided)
    key = spy.written[0][0]
    assert key.stride(-1) == 1
    torch.testing.assert_close(key, strided[0].transpose(0, 1))


def test_a_model_runs_only_within_a_step() -> None:
    loaded = wrap_model(build("llama"))
    ids = torch.arange(3)
    with pytest.raises(ContractError, match="no kernel attached"):
        loaded.forward(ids, ids, ids)
    loaded.bridge.bind([LayerBinding(Spy(), None, 0)] * 3)
    with pytest.raises(ContractError, match="outside a step"):
        loaded.forward(ids, ids, ids)
    with loaded.bridge.step([object()]):
        assert loaded.forward(ids, ids, ids).shape == (3, 128)
    with pytest.raises(ContractError, match="outside a step"):
        loaded.forward(ids, ids, ids)
    loaded.bridge.release()
    with pytest.raises(ContractError, match="no kernel attached"):
        loaded.forward(ids, ids, ids)


def test_a_step_that_fails_ends() -> None:
    loaded = wrap_model(build("llama"))
    loaded.bridge.bind([LayerBinding(Spy(), None, 0)] * 3)
    with pytest.raises(KeyError), loaded.bridge.step([object()]):
        raise KeyError
    with pytest.raises(ContractError, match="outside a step"):
        loaded.forward(torch.arange(3), torch.arange(3), torch.arange(3))


def test_wrong_numbers_are_named() -> None:
    bridge = AttentionBridge([nn.Identity(), nn.Identity()])
    with pytest.raises(ContractError, match="1 bindings for a model of 2 attention layers"):
        bridge.bind([LayerBinding(Spy(), None, 0)])
    bridge.bind([LayerBinding(Spy(), None, 0), LayerBinding(Spy(), None, 1)])
    with pytest.raises(ContractError, match="1 metadata for 2 groups"), bridge.step([object()]):
        pytest.fail("entered")


def test_two_models_do_not_share_anything() -> None:
    first, second = wrap_model(build("llama", 1)), wrap_model(build("llama", 2))
    spies = (Spy(), Spy())
    for loaded, spy in zip((first, second), spies, strict=True):
        loaded.bridge.bind([LayerBinding(spy, None, 0)] * 3)
    ids = torch.arange(4)
    with first.bridge.step(["of the first"]):
        first.forward(ids, ids, ids)
    assert [entry[3] for entry in spies[0].written] == ["of the first"] * 3
    assert not spies[1].written


def test_what_was_attached_before_is_attached_again() -> None:
    module = nn.Identity()

    def one(call: AttentionCall) -> torch.Tensor:
        return call.query + 1

    def two(call: AttentionCall) -> torch.Tensor:
        return call.query + 2

    zeros = torch.zeros(1, 1, 1, 1)
    with attached({module: one}):
        with attached({module: two}):
            assert packed_attention(module, zeros, zeros, zeros)[0].item() == 2
        assert packed_attention(module, zeros, zeros, zeros)[0].item() == 1
    with pytest.raises(ContractError, match="Identity ran its attention with no kernel attached"):
        packed_attention(module, zeros, zeros, zeros)
