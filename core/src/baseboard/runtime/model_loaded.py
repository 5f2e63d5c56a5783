"""A model that is ready to run: its facts, and one forward pass over packed tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from baseboard.contract import DType, KVDType
from baseboard.runtime.attention_bridge import AttentionBridge
from baseboard.runtime.layers import KVFormat, LayerFacts, LayerGroup, group_layers
from baseboard.runtime.model_refusals import max_positions
from baseboard.runtime.probe import ProbedLayer
from baseboard.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel


class LoadedModel:
    """A transformers model whose attention is ours. Made by ``load_model`` and ``wrap_model``.

    Its attention does nothing before ``bridge`` is bound to a backend's kernels; a forward pass runs within
    ``bridge.step``.
    """

    def __init__(
        self, model: PreTrainedModel, layers: Sequence[ProbedLayer], tokenizer: Tokenizer | None, name: str
    ) -> None:
        self._model = model
        self._logits = _logits_function(model)
        self.name = name
        self.tokenizer = tokenizer
        self.layers: tuple[LayerFacts, ...] = tuple(layer.facts for layer in layers)
        self.attention_modules: tuple[nn.Module, ...] = tuple(layer.module for layer in layers)
        self.bridge = AttentionBridge(self.attention_modules)
        self.max_positions: int | None = max_positions(model.config)  #: None: no limit
        self.vocab_size: int = _num_logits(model)  #: rows of the logits
        self.eos_token_ids: frozenset[int] = frozenset(_eos_token_ids(model, tokenizer))

    @property
    def config(self) -> PreTrainedConfig:
        return self._model.config

    @property
    def dtype(self) -> DType:
        return cast("DType", str(self._model.dtype).removeprefix("torch."))

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def num_parameters(self) -> int:
        """Weights that are used in two places count once."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def weights_nbytes(self) -> int:
        """Bytes on the device: parameters and buffers."""
        return sum(tensor.nbytes for tensor in (*self._model.parameters(), *self._model.buffers()))

    def groups(self, block_size: int, kv_dtype: KVDType = "auto") -> tuple[LayerGroup, ...]:
        """The layers in groups that are stored alike, in the order of their first layers."""
        return group_layers(self.layers, KVFormat(self.dtype, block_size, kv_dtype))

    @property
    def module(self) -> PreTrainedModel:
        """The transformers model itself."""
        return self._model

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits ``[R, V]`` in float32 of the tokens that ``rows`` picks; all on the model's device.

        ``token_ids`` and ``positions`` are int64 ``[T]``, the step's sequences one after the other without padding;
        ``rows`` is int64 ``[R]``, indices into T.
        """
        import torch

        with torch.inference_mode():
            return self._logits(token_ids.unsqueeze(0), positions.unsqueeze(0), rows)[0].float()


def _logits_function(model: PreTrainedModel) -> Callable[[Any, Any, Any], Any]:
    """Computes ``[1, R, V]``; where the model allows it, its head runs on the wanted rows only."""

    def kept(token_ids: Any, positions: Any, rows: Any) -> Any:
        return model(input_ids=token_ids, position_ids=positions, use_cache=False, logits_to_keep=rows).logits

    def picked(token_ids: Any, positions: Any, rows: Any) -> Any:
        return model(input_ids=token_ids, position_ids=positions, use_cache=False).logits[:, rows]

    return kept if "logits_to_keep" in inspect.signature(model.forward).parameters else picked


def _num_logits(model: PreTrainedModel) -> int:
    head = model.get_output_embeddings()
    if head is not None:
        return int(cast("torch.Tensor", head.weight).shape[0])
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _eos_token_ids(model: PreTrainedModel, tokenizer: Tokenizer | None) -> Iterator[int]:
    for settings in (model.generation_config, model.config, model.config.get_text_config(decoder=True)):
        eos = getattr(settings, "eos_token_id", None)
        if eos is not None:
            yield from (int(token) for token in (eos if isinstance(eos, list | tuple) else (eos,)))
    if tokenizer is not None:
        yield from tokenizer.eos_token_ids
