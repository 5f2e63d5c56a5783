"""The two nouns between scheduler and executor: what to run in a step, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from baseboard.contract.media import ContentId, EncoderInput, MediaSpan
from baseboard.contract.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class BlockPair:
    """One block's way: ids in the source pool and in the destination pool."""

    source: int
    destination: int


class KVOpKind(Enum):
    SWAP_OUT = "swap_out"  #: device to host
    SWAP_IN = "swap_in"  #: host to device
    COPY = "copy"  #: device to device


@dataclass(frozen=True, slots=True)
class KVOp:
    """One batch of block moves. Within a batch destinations are unique and no block is source and destination."""

    kind: KVOpKind
    pairs: tuple[BlockPair, ...]


@dataclass(frozen=True, slots=True)
class RowState:
    """All that an executor must know of a request it does not hold: new, resumed, swapped in or forked."""

    id: str
    token_ids: tuple[int, ...]  #: prompt and outputs so far
    num_prompt_tokens: int
    params: SamplingParams
    sample_index: int  #: which of ``params.n`` samples
    tables: tuple[tuple[int, ...], ...]  #: block table of each layer group; entries nobody reads any more are 0
    media: tuple[MediaSpan, ...] = ()  #: prompt positions that hold what an encoder made, in order
    cross: tuple[int, ...] = ()  #: block table of cross-attention, as long as it ever is
    num_source_tokens: int = 0  #: what cross-attention sees through it
    source: tuple[int, ...] = ()  #: to be encoded into ``cross`` before the row computes; empty: that holds it already


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Entries ``first .. first + len(blocks) - 1`` of one of the row's block tables, which may grow by them."""

    id: str
    first: int
    blocks: tuple[int, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """Keys and values that lie outside, to be fetched into the row's blocks before it computes."""

    id: str
    first: int  #: position of the first token
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, in columns: entry ``i`` of each column belongs to row ``i``.

    An executor applies, in this order: ``retired``, ``entered``, ``updates``, ``encoder_drops``, ``zeroes``, ``kv_ops``
    (one after the other), ``loads``, ``encoder_loads``, ``encodes``, the sources of ``entered``, then computes. Rows it
    already holds it continues from its own state: it appends what it sampled. Of a step that fails no encoding is kept.
    """

    step: int  #: counts plans from 0
    ids: tuple[str, ...]
    starts: tuple[int, ...]  #: position of the first token to compute
    counts: tuple[int, ...]  #: tokens to compute, at least 1
    samples: tuple[int, ...]  #: tokens to sample after the row's last position: 0 for an unfinished chunk
    entered: tuple[RowState, ...] = ()
    retired: tuple[str, ...] = ()  #: rows whose state is no longer needed
    updates: tuple[TableUpdate, ...] = ()
    loads: tuple[Load, ...] = ()
    drafts: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    #: by row id: tokens that somebody guessed to follow; they are computed too, and each that is sampled is kept
    masks: Mapping[str, tuple[frozenset[int], ...]] = field(default_factory=dict[str, tuple[frozenset[int], ...]])
    #: by row id, where its text is constrained: the tokens allowed at each position that is sampled, drafts first
    pools: tuple[str, ...] = ()  #: rows whose prompt ends here and of which one pooled value is wanted, not a token
    num_common_prefix_blocks: int | None = None
    #: leading blocks that the tables of all rows share and no row writes to; None where nobody asked
    zeroes: tuple[int, ...] = ()  #: device blocks to wipe: what they held must not be read by anybody
    kv_ops: tuple[KVOp, ...] = ()
    encoder_drops: tuple[ContentId, ...] = ()  #: encodings that no row needs any more; dropped even if the step fails
    encoder_loads: tuple[EncoderInput, ...] = ()  #: to be fetched from outside, and kept until dropped
    encodes: tuple[EncoderInput, ...] = ()  #: to be run through the encoder before the rows, and kept until dropped

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens given to each request."""
        return dict(zip(self.ids, self.counts, strict=True))

    @property
    def copies(self) -> tuple[tuple[int, int], ...]:
        return self._pairs(KVOpKind.COPY)

    @property
    def swaps_in(self) -> tuple[tuple[int, int], ...]:
        """(host block, device block)."""
        return self._pairs(KVOpKind.SWAP_IN)

    @property
    def swaps_out(self) -> tuple[tuple[int, int], ...]:
        """(device block, host block)."""
        return self._pairs(KVOpKind.SWAP_OUT)

    def _pairs(self, kind: KVOpKind) -> tuple[tuple[int, int], ...]:
        return tuple((p.source, p.destination) for op in self.kv_ops if op.kind is kind for p in op.pairs)


@dataclass(frozen=True, slots=True)
class RankedToken:
    """A token of the vocabulary with its log-probability and rank (1 = most likely)."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability (natural, of the model's unmodified distribution) of one token, and of the most likely ones."""

    chosen: RankedToken
    top: tuple[RankedToken, ...]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """What a row's request asked to know."""

    sampled: tuple[TokenLogprobs, ...] = ()  #: parallel to the row's sampled tokens
    prompt: tuple[TokenLogprobs, ...] = ()  #: of the prompt tokens that follow the row's computed positions


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one plan. Rows in the plan's order."""

    step: int
    #: per row, as many tokens as the plan's ``samples`` says; of a row with drafts those that were right, and one more
    sampled: tuple[tuple[int, ...], ...]
    logprobs: Mapping[int, RowLogprobs] = field(default_factory=dict[int, RowLogprobs])  #: by row, where asked for
    lost: Mapping[int, int] = field(default_factory=dict[int, int])
    #: by row whose load failed in part: its leading tokens whose keys and values are good, of several loads the
    #: fewest. It sampled nothing
    encoder_lost: tuple[ContentId, ...] = ()
    #: of ``encoder_loads``: what turned out to be missing. Rows that needed it are in ``lost``
    drafts: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    #: by row: guesses at what follows the sampled tokens, to be verified in the next step
    pooled: Mapping[int, Any] = field(default_factory=dict[int, Any])  #: by row, for each of the plan's ``pools``
    num_nans: Mapping[int, int] = field(default_factory=dict[int, int])
    #: by row: values among the logits it was sampled from that are no numbers, where there are any
    failed: Mapping[int, str] = field(default_factory=dict[int, str])  #: rows that came to nothing, and why


class PendingStep(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the step. Raises ``BackendFault`` when the device is lost."""
        ...


class Executor(Protocol):
    """Runs plans in the order it is given them: local torch, another process, or a vendor's own engine."""

    def submit(self, plan: StepPlan) -> PendingStep: ...
    def close(self) -> None: ...
