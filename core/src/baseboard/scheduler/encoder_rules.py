"""How much the encoder may do, and which requests can never be served for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.contract.errors import RequestRejected
from baseboard.contract.media import MediaSpan
from baseboard.request.request import Request, RequestSpec
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.limits import AlignedChunks, Limit
from baseboard.scheduler.splitting import Anywhere, BetweenInputs, Nowhere, Splitting


@dataclass(frozen=True, slots=True)
class EncoderLimits:
    """In the units in which inputs say their cost; None: no limit. ``ValueError`` for less than 1."""

    budget: int | None = None  #: computed in one step
    cache_size: int | None = None  #: kept at once
    split_inputs: bool = True  #: whether a chunk may end in the middle of an input

    def __post_init__(self) -> None:
        for name, value in (("encoder_budget", self.budget), ("encoder_cache_size", self.cache_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1; leave it out for no limit")

    @property
    def units_per_step(self) -> int:
        return sys.maxsize if self.budget is None else self.budget

    @property
    def units_kept(self) -> int:
        return sys.maxsize if self.cache_size is None else self.cache_size


@dataclass(frozen=True, slots=True)
class LongestChunk:
    """How many tokens of a step one request can be given, by what else limits it."""

    limits: tuple[Limit, ...]
    budget: int

    def at(self, spec: RequestSpec, span: MediaSpan) -> int:
        """From the beginning of an input to its end, or as far as a chunk can go."""
        request = Request(spec, ())
        request.computed = span.offset
        want = min(span.length, self.budget)
        for limit in self.limits:
            want = limit.clip(request, want, self.budget)
        return want


@dataclass(frozen=True, slots=True)
class EncoderRules:
    """All that is fixed about an encoder."""

    limits: EncoderLimits
    splitting: Splitting
    chunk: LongestChunk

    def check(self, spec: RequestSpec) -> None:
        """Raise ``RequestRejected`` for inputs that can never be had, naming value, limit and way out."""
        if not spec.media:
            return
        _check_places(spec.media, len(spec.prompt))
        for together in self.splitting.together(spec.media):
            self._check_units(together)
        for span in spec.media:
            self._check_length(spec, span)

    def _check_units(self, together: Sequence[MediaSpan]) -> None:
        units = sum({span.content_id: span.cost for span in together}.values())
        what, way_out = f"the input at {_at(together[0])} costs", "make it smaller or raise"
        if len(together) > 1:
            what = f"the {len(together)} inputs, which one step must have at once without chunked prefill, cost"
            way_out = "enable chunked prefill or raise"
        for name, limit in (
            ("encoder_budget", self.limits.units_per_step),
            ("encoder_cache_size", self.limits.units_kept),
        ):
            if units > limit:
                raise RequestRejected(f"{what} {units} units, but {name}={limit}; {way_out} {name}")

    def _check_length(self, spec: RequestSpec, span: MediaSpan) -> None:
        if self.splitting.tokens_at_once(span) == 1:
            return
        chunk = self.chunk.at(spec, span)
        if chunk < span.length:
            raise RequestRejected(
                f"the input at {_at(span)} has {span.length} positions and is not to be split, but a step gives a "
                f"request {chunk} tokens at most; raise max_num_batched_tokens, or what else limits a chunk, "
                f"or let inputs be split"
            )


def make_encoder_rules(roles_limits: tuple[Limit, ...], config: SchedulerConfig, limits: EncoderLimits) -> EncoderRules:
    """Raises ``ValueError`` where chunks are to end where inputs are not to be split."""
    splitting: Splitting = Anywhere()
    if not config.chunked_prefill:
        splitting = Nowhere()
    elif not limits.split_inputs:
        splitting = BetweenInputs()
        if any(isinstance(limit, AlignedChunks) for limit in roles_limits):
            raise ValueError("chunk_alignment ends chunks within inputs, which split_inputs=False forbids: choose one")
    return EncoderRules(limits, splitting, LongestChunk(roles_limits, config.scheduled_tokens))


def _check_places(media: Sequence[MediaSpan], num_prompt: int) -> None:
    """No span beyond the prompt, before the one before it, or on top of it."""
    end = 0
    for span in media:
        if span.offset < end:
            raise RequestRejected(
                f"the input at {_at(span)} begins before position {end}, where the one before it ends"
            )
        end = span.end
    if end > num_prompt:
        raise RequestRejected(
            f"the input at {_at(media[-1])} ends at position {end}, but the prompt has {num_prompt} tokens: "
            f"give it a placeholder for each of its positions"
        )


def _at(span: MediaSpan) -> str:
    return f"{span.offset}..{span.end - 1}"
