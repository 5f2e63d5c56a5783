"""The operators of a few lines: storing keys and values, norms, activation, rotation, filtering."""

from __future__ import annotations

import torch

from baseboard_ascend_standin.emulator.calls import Call
from baseboard_ascend_standin.emulator.constraints import Checks

_SCATTER = Checks("scatter")
_NORM = Checks("rms_norm")
_SWIGLU = Checks("swiglu")
_MROPE = Checks("mrope")
_FILTER = Checks("top_k_top_p")
_FLOATS = {torch.float16, torch.bfloat16, torch.float32}


def scatter(call: Call) -> None:
    _check_scatter(call)
    slots = call.slot_mapping.long()
    call.key_cache.flatten(0, 1)[slots] = call.key
    call.value_cache.flatten(0, 1)[slots] = call.value


def _check_scatter(call: Call) -> None:
    require = _SCATTER.require
    require("chip", call.chip.has_operators, call.chip.soc)
    require("mode", call.cache_mode == "Norm", call.cache_mode)
    tensors = {name: getattr(call, name) for name in ("key", "value", "key_cache", "value_cache", "slot_mapping")}
    for name, tensor in tensors.items():
        require(f"{name}.device", name in call.on_device, "host")
        require(f"{name}.contiguous", tensor.is_contiguous(), tensor.stride())
    key, value, slots = call.key, call.value, call.slot_mapping
    require("dtype", len({t.dtype for name, t in tensors.items() if name != "slot_mapping"}) == 1, "several")
    require("key.rank", key.ndim == 3 and value.ndim == 3, (key.shape, value.shape))
    require("key.alike", key.shape[:2] == value.shape[:2], (key.shape, value.shape))
    for name, new in (("key_cache", key), ("value_cache", value)):
        cache = tensors[name]
        require(f"{name}.shape", cache.ndim == 4 and cache.shape[2:] == new.shape[1:], cache.shape)
    require("slots.dtype", slots.dtype in {torch.int32, torch.int64}, slots.dtype)
    require("slots.shape", slots.shape == (len(key),), slots.shape)
    total = call.key_cache.shape[0] * call.key_cache.shape[1]
    require("slots.range", bool(((slots >= 0) & (slots < total)).all()), slots.tolist())
    require("slots.unique", len(slots.unique()) == len(slots), slots.tolist())


def rms_norm(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    _NORM.require("device", {"input", "gamma"} <= call.on_device, call.on_device)
    return _norm(call.arguments["input"], call.gamma, call.epsilon)


def add_rms_norm(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _NORM.require("device", {"x1", "x2", "gamma"} <= call.on_device, call.on_device)
    _NORM.require("alike", (call.x1.shape, call.x1.dtype) == (call.x2.shape, call.x2.dtype), (call.x1, call.x2))
    total = (call.x1.float() + call.x2.float()).to(call.x1.dtype)
    return (*_norm(total, call.gamma, call.epsilon), total)


def _norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    _NORM.require("rank", 2 <= x.ndim <= 8, x.shape)
    _NORM.require("dtype", x.dtype in _FLOATS, x.dtype)
    _NORM.require("gamma.dtype", gamma.dtype == x.dtype, gamma.dtype)
    _NORM.require("gamma.shape", gamma.shape == x.shape[-gamma.ndim :], (gamma.shape, x.shape))
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * inverse * gamma.float()).to(x.dtype), inverse


def swiglu(call: Call) -> torch.Tensor:
    x = call.arguments["input"]
    _SWIGLU.require("rank", 1 <= x.ndim <= 8, x.shape)
    _SWIGLU.require("dtype", x.dtype in _FLOATS, x.dtype)
    _SWIGLU.require("even", x.shape[call.dim] % 2 == 0, x.shape)
    gate, up = x.float().chunk(2, call.dim)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def mrope(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    table, positions = call.cos_sin_cache, call.positions
    dtypes = {call.query.dtype, call.key.dtype, table.dtype}
    _MROPE.require("rank", call.query.ndim == call.key.ndim == table.ndim == 2, (call.query.shape, table.shape))
    _MROPE.require("dtype", len(dtypes) == 1 and dtypes <= _FLOATS, dtypes)
    _MROPE.require("positions", positions.ndim == 1 and positions.dtype in {torch.int32, torch.int64}, positions)
    _MROPE.require("positions.range", bool(((positions >= 0) & (positions < len(table))).all()), positions)
    _MROPE.require("sections", call.mrope_section == [0, 0, 0], call.mrope_section)
    _MROPE.require("mode", call.rotary_mode in {"half", "interleave"}, call.rotary_mode)
    multiple = 16 if table.dtype == torch.float32 else 32
    _MROPE.require("rotary_dim", table.shape[1] % multiple == 0 and table.shape[1] <= call.head_size, table.shape)
    cos, sin = table[positions].float().chunk(2, -1)
    return _turned(call.query, call, cos, sin), _turned(call.key, call, cos, sin)


def _turned(x: torch.Tensor, call: Call, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotary = 2 * cos.shape[1]
    heads = x.float().unflatten(1, (-1, call.head_size)).clone()
    part = heads[..., :rotary]
    pairs = (part[..., : rotary // 2], part[..., rotary // 2 :])
    if call.rotary_mode == "interleave":
        pairs = (part[..., 0::2], part[..., 1::2])
    a, b = (each.clone() for each in pairs)
    pairs[0].copy_(a * cos[:, None] - b * sin[:, None])
    pairs[1].copy_(b * cos[:, None] + a * sin[:, None])
    return heads.flatten(1).to(x.dtype)


def top_k_top_p(call: Call) -> torch.Tensor:
    logits, p, k = call.logits, call.p, call.k
    _FILTER.require("k.dtype", k.dtype == torch.int32, k.dtype)
    _FILTER.require("k.range", bool(((k >= 1) & (k <= min(1024, logits.shape[1]))).all()), k)
    _FILTER.require("p.dtype", p.dtype == logits.dtype, p.dtype)
    _FILTER.require("shapes", logits.ndim == 2 and p.shape == k.shape == logits.shape[:1], (p.shape, k.shape))
    values, order = logits.float().sort(dim=-1, stable=True)
    lowest = values.gather(1, logits.shape[1] - k.long()[:, None])
    values = values.masked_fill(values < lowest, -torch.inf)
    hidden = values.softmax(-1).cumsum(-1) <= 1 - p.float()[:, None]
    hidden[:, -1] = False
    return torch.empty_like(values).scatter_(1, order, values.masked_fill(hidden, -torch.inf)).to(logits.dtype)
