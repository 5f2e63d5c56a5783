"""How the next token is chosen: the user's wishes for one request."""

# What users hand in is checked at run time, whatever the annotations say:
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard, cast

from baseboard.contract.errors import RequestRejected

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What to sample and when to stop. Checked when made: a contradiction raises ``RequestRejected``.

    The chain, per token: bias and allowed ids, penalties, temperature, then top-k, top-p and min-p on the
    tempered distribution, then one draw. ``temperature=0`` takes the most likely token.
    """

    n: int = 1  #: samples per prompt; they share the prompt's KV blocks
    temperature: float = 1.0
    top_p: float = 1.0  #: keep the smallest set of tokens whose probabilities sum to at least this; (0, 1]
    top_k: int = 0  #: keep this many tokens; 0 keeps all
    min_p: float = 0.0  #: drop tokens less likely than this fraction of the most likely one; [0, 1]
    presence_penalty: float = 0.0  #: subtracted from logits of tokens already generated; [-2, 2]
    frequency_penalty: float = 0.0  #: subtracted once for each time a token was generated; [-2, 2]
    repetition_penalty: float = 1.0  #: divides positive, multiplies negative logits of tokens in prompt or output
    seed: int | None = (
        None  #: 64 bits, signed or not; same seed, prompt and parameters: same tokens, whatever else runs
    )
    stop: tuple[str, ...] = ()  #: texts that end the output; a plain string is one of them
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  #: None: up to the model's limit
    min_tokens: int = 0  #: stop tokens cannot be sampled before
    logprobs: int | None = None  #: this many most likely tokens, and the sampled one, with each token; at most 20
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None  #: added to logits; [-100, 100]
    allowed_token_ids: tuple[int, ...] | None = None
    skip_special_tokens: bool = True
    structured_output: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "allowed_token_ids"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        object.__setattr__(self, "logit_bias", _as_dict("logit_bias", self.logit_bias))
        for check in (_check_flags, _check_counts, _check_ranges, _check_stops, _check_ids, _check_together):
            check(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, checked anew."""
        return SamplingParams(**{f.name: getattr(self, f.name) for f in fields(self)} | changes)


def _refuse(name: str, value: object, limit: str) -> RequestRejected:
    return RequestRejected(f"{name}={value!r} is not allowed: {limit}")


def _as_tuple(name: str, value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None if name == "allowed_token_ids" else ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _refuse(name, value, "give a list")
    return tuple(cast("Iterable[Any]", value))


def _as_dict(name: str, value: Any) -> dict[Any, Any] | None:
    """A copy: what the caller does to the original later must not reach a checked request."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "give a mapping from token ids to numbers")
    return dict(cast("Mapping[Any, Any]", value))


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_flags(p: SamplingParams) -> None:
    for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
        value = getattr(p, name)
        if not isinstance(value, bool):
            raise _refuse(name, value, "give True or False")


def _check_counts(p: SamplingParams) -> None:
    limits: tuple[tuple[str, int, int | None], ...] = (
        ("n", 1, None),
        ("top_k", 0, None),
        ("max_tokens", 1, None),
        ("min_tokens", 0, None),
        ("logprobs", 0, MAX_LOGPROBS),
        ("prompt_logprobs", 0, MAX_LOGPROBS),
        ("seed", -(2**63), 2**64 - 1),
    )
    for name, low, high in limits:
        value: Any = getattr(p, name)
        if value is None and name in {"max_tokens", "logprobs", "prompt_logprobs", "seed"}:
            continue
        if not _is_int(value):
            raise _refuse(name, value, "give a whole number")
        if value < low:
            raise _refuse(name, value, f"it must be at least {low}")
        if high is not None and value > high:
            raise _refuse(name, value, f"it must be at most {high}")


def _check_ranges(p: SamplingParams) -> None:
    ranges = (
        ("temperature", 0.0, 100.0),
        ("top_p", math.ulp(0.0), 1.0),
        ("min_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
        ("repetition_penalty", 0.01, 100.0),
    )
    for name, low, high in ranges:
        value = getattr(p, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refuse(name, value, "give a number")
        if not low <= value <= high:
            bound = "above 0" if name == "top_p" else f"at least {low:g}"
            raise _refuse(name, value, f"it must be {bound} and at most {high:g}")


def _check_stops(p: SamplingParams) -> None:
    for text in p.stop:
        if not isinstance(text, str) or not text:
            raise _refuse("stop", text, "each stop text must be a string that is not empty")


def _check_ids(p: SamplingParams) -> None:
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token in getattr(p, name) or ():
            if not _is_int(token) or token < 0:
                raise _refuse(name, token, "token ids are whole numbers from 0")
    for token, bias in (p.logit_bias or {}).items():
        if not _is_int(token) or token < 0:
            raise _refuse("logit_bias", token, "token ids are whole numbers from 0")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise _refuse("logit_bias", bias, "a bias is a number from -100 to 100")
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        raise _refuse("allowed_token_ids", (), "it allows no token at all; leave it out or name some")


def _check_together(p: SamplingParams) -> None:
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise RequestRejected(f"min_tokens={p.min_tokens} is more than max_tokens={p.max_tokens}")
    if p.structured_output is not None:
        raise _refuse("structured_output", p.structured_output, "this release has no grammar engine; leave it out")
    if p.allowed_token_ids is not None and p.min_tokens and set(p.allowed_token_ids) <= set(p.stop_token_ids):
        raise RequestRejected("min_tokens with allowed_token_ids that are all stop tokens leaves nothing to sample")
