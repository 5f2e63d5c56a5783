"""Proves, when a model is loaded, that its packed forward pass with the facts found equals its own attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from baseboard.contract import AttentionSpec, Unsupported
from baseboard.runtime.attention_bridge import ATTENTION_NAME, AttentionCall, attached
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard.runtime.model_refusals import max_positions, text_config
from baseboard.runtime.probe import ProbedLayer, packed_logits

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_LONGEST: Final = 56  #: tokens of the longer sequence; both together stay near 64
_USUAL: Final = 14
_SECOND: Final = 7

#: Largest difference of a row of logits, relative to its size, that rounding explains. Two orders of rounding in
#: bfloat16 end up 0.1 apart after the 30 layers of a small model; unrelated rows are 1.4 apart.
_TOLERANCE: Final = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 3e-1}
#: Share of rows that must be within it. In half precision a near tie in a router may send a token elsewhere.
_AGREEING: Final = {"float32": 1.0, "float16": 0.75, "bfloat16": 0.75}


@dataclass(frozen=True, slots=True)
class _Packed:
    """Two sequences whose tokens alternate, so that whatever mixes neighbours outside attention shows."""

    token_ids: torch.Tensor  #: ``[T]``
    positions: torch.Tensor  #: ``[T]``
    sequences: torch.Tensor  #: ``[T]``, 0 or 1

    def visible(self, window: int | None) -> torch.Tensor:
        """Which key each query sees: ``[T, T]``, queries first."""
        ahead = self.positions[:, None] - self.positions[None, :]
        seen = (self.sequences[:, None] == self.sequences[None, :]) & (ahead >= 0)
        return seen if window is None else seen & (ahead < window)


def check_reproduces(model: PreTrainedModel, layers: Sequence[ProbedLayer]) -> None:
    """Raise ``Unsupported`` unless both ways of computing give the same logits, but for rounding.

    Costs three short forward passes. The model's attention must be set to ours, and is again afterwards.
    """
    import torch

    packed = _pack(model, [layer.facts.attention.sliding_window for layer in layers])
    attentions = {layer.module: _PlainAttention(layer.facts.attention, packed) for layer in layers}
    with attached(attentions):
        ours = packed_logits(model, packed.token_ids, packed.positions).float()
    with quiet_transformers(), torch.inference_mode():
        model.set_attn_implementation("eager")
        try:
            for sequence in (0, 1):
                mine = packed.sequences == sequence
                # Positions are left to the model here: it must mean by them what we do.
                theirs = model(input_ids=packed.token_ids[mine][None], use_cache=False).logits[0].float()
                _compare(model, ours[mine], theirs)
        finally:
            model.set_attn_implementation(ATTENTION_NAME)


def _compare(model: PreTrainedModel, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    dtype = str(model.dtype).removeprefix("torch.")
    spread = theirs - theirs.mean(-1, keepdim=True)
    errors = (ours - theirs).norm(dim=-1) / spread.norm(dim=-1).clamp_min(1e-6)
    agreeing = (errors <= _TOLERANCE[dtype]).float().mean().item()
    if not agreeing >= _AGREEING[dtype]:
        raise Unsupported(
            [
                f"{model.config.model_type}: its attention does more than the interface shows: logits differ by "
                f"{errors.max().item():.2g} of their size from the model's own, {_TOLERANCE[dtype]:g} is allowed"
            ]
        )


def _pack(model: PreTrainedModel, windows: Sequence[int | None]) -> _Packed:
    import torch

    smallest = min((w for w in windows if w is not None), default=_LONGEST)
    wanted = smallest + _SECOND if smallest + _SECOND <= _LONGEST else _USUAL
    limit = max_positions(model.config) or _LONGEST
    first, second = min(wanted, limit), min(_SECOND, limit)
    positions = torch.cat([torch.arange(first), torch.arange(second)])
    sequences = torch.cat([torch.zeros(first, dtype=torch.long), torch.ones(second, dtype=torch.long)])
    order = torch.argsort(positions, stable=True)
    vocab_size = int(text_config(model.config).vocab_size)
    token_ids = torch.randint(vocab_size, (len(order),), generator=torch.Generator().manual_seed(0))
    return _Packed(*(t.to(model.device) for t in (token_ids, positions[order], sequences[order])))


class _PlainAttention:
    """The contract's formula for one layer, in float32 and straight from the packed tokens."""

    def __init__(self, spec: AttentionSpec, packed: _Packed) -> None:
        self._spec = spec
        self._packed = packed

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        import torch

        spec = self._spec
        repeats = spec.num_heads // spec.num_kv_heads
        key = call.key.float().repeat_interleave(repeats, dim=1)
        value = call.value.float().repeat_interleave(repeats, dim=1)
        scores = torch.einsum("qhd,khd->hqk", call.query.float(), key) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        scores = scores.masked_fill(~self._packed.visible(spec.sliding_window), -torch.inf)
        if spec.sinks is not None:
            sinks = scores.new_tensor(spec.sinks)[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(dim=-1)[..., : key.shape[0]]
        return torch.einsum("hqk,khd->qhd", weights, value).to(call.query.dtype)
