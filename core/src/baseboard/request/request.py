"""One sequence of tokens on its way through the scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias

from baseboard.contract.media import MediaSpan
from baseboard.contract.sampling import SamplingParams
from baseboard.request.constraint import TokenConstraint
from baseboard.request.prompt import Beginning
from baseboard.request.status import Event, FinishReason, Status, transition

#: What requests are ordered by, smallest first.
RankKey: TypeAlias = tuple[float, ...]


class Task(str, Enum):
    """What is wanted once the prompt is computed."""

    GENERATE = "generate"  #: tokens
    POOL = "pool"  #: one value of the whole prompt (an embedding, a score); the request ends with it


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asked. It travels with the request and comes back with its outputs; the core reads the index only."""

    client: int = 0  #: outcomes are split by it
    trace: Mapping[str, str] | None = None  #: trace context, as its tracer wants it


#: Tokens of a prompt from which on it is worth an effort to keep it only once.
_LONG: Final = 512
#: Somebody of whom there is only one.
ANYBODY: Final = Caller()


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What the caller asked for; never changes."""

    id: str
    prompt: Sequence[int]  #: never changes
    params: SamplingParams
    max_total: int  #: tokens at which the request ends, prompt included
    stop_ids: frozenset[int]  #: end-of-sequence ids (unless ignored) and the user's
    priority: int = 0  #: lower is more important
    arrival: int = 0  #: number of requests submitted before
    namespace: bytes = b""  #: prefix blocks are shared within a namespace only
    sample_index: int = 0  #: which of ``params.n`` samples
    arrived_at: float = 0.0  #: seconds of the injected clock
    adapter: str | None = None  #: LoRA adapter; None is the base model
    media: tuple[MediaSpan, ...] = ()  #: inputs for the encoder, in order of their positions, not overlapping
    source: tuple[int, ...] = ()  #: of an encoder-decoder model: what the encoder reads, whole, before the prompt
    tenant: str | None = None  #: on whose behalf: for policies that share between tenants; None is nobody in particular
    task: Task = Task.GENERATE
    caller: Caller = ANYBODY
    kv_transfer: Mapping[str, Any] | None = None  #: for the prefix source that is to fetch or keep its keys and values

    @property
    def key_namespace(self) -> bytes:
        """Whose prefix blocks these are: a decoder's keys and values depend on all of the source."""
        if not self.source:
            return self.namespace
        return self.namespace + b"\0source\0" + blake2b(array("q", self.source).tobytes(), digest_size=16).digest()


class StatusListener(Protocol):
    def opened(self, request: Request) -> None:
        """The request is new: it waits, or has been forked off another one."""
        ...

    def changed(self, request: Request, event: Event) -> None:
        """The request's status has just been changed by ``event``."""
        ...


class Request:
    """A sequence: the spec, its tokens and how many of them are computed.

    ::

        tokens   p p p p p p p o o o            prompt, outputs
        computed ^^^^^^^^^^^                    their keys and values are in the cache, or will be once the
                                                steps under way have run
        promised             + 1                tokens that steps under way will append

    Owner: the scheduler is the only writer. ``status`` changes through :meth:`on` alone.
    """

    __slots__ = (
        "__weakref__",
        "_status",
        "capacity",
        "computed",
        "constraint",
        "drafts",
        "epoch",
        "error",
        "id",
        "input_open",
        "kv_transfer",
        "let_down",
        "listener",
        "max_total",
        "num_cached",
        "num_nans",
        "num_preemptions",
        "num_prompt",
        "pooled",
        "promised",
        "rank",
        "resident",
        "settle_at",
        "spec",
        "started",
        "stop_from",
        "stop_ids",
        "stop_reason",
        "tokens",
        "verifying",
        "width",
    )

    def __init__(self, spec: RequestSpec, rank: RankKey, tokens: Sequence[int] = ()) -> None:
        #: four bytes each: a list of numbers would take nine times as much
        self.tokens: Final[array[int]] = array("i", tokens or spec.prompt)
        if len(spec.prompt) >= _LONG:
            spec = replace(spec, prompt=Beginning(self.tokens, len(spec.prompt)))
        self.spec: Final = spec
        self.id: Final = spec.id
        self.rank: Final = rank
        self.num_prompt = len(spec.prompt)
        self.max_total = spec.max_total
        self.stop_ids: Final = spec.stop_ids
        #: number of tokens from which a stop id ends the request
        self.stop_from = self.num_prompt + spec.params.min_tokens
        self._status = Status.WAITING
        #: is told of every change of the status
        self.listener: StatusListener | None = None
        #: whether the prompt may still grow; until it is whole nothing is sampled
        self.input_open = False
        #: whether it has ever held blocks of its own
        self.started = False
        self.computed = 0
        self.promised = 0
        #: tokens that fit the blocks held without asking the KV manager; never above what may be written in place
        self.capacity = 0
        #: number of computed tokens at which the next full block is to be published
        self.settle_at = 0
        #: which stay in the executor this is; see :meth:`awaits` for results of an earlier one
        self.epoch = 0
        #: whether the executor holds this row
        self.resident = False
        #: sequences this request stands for: ``n`` until its samples are forked, then 1
        self.width = 1
        #: guesses at what follows ``tokens``, to be computed beside the last of them
        self.drafts: tuple[int, ...] = ()
        #: how many drafts the row under way verifies
        self.verifying = 0
        #: what the next token may be, where the text is constrained
        self.constraint: TokenConstraint | None = None
        #: what was sent to it from outside got lost: it computes all its tokens itself
        self.let_down = False
        self.num_cached = 0  #: prompt tokens found in the prefix cache at first admission
        self.num_preemptions = 0
        self.stop_reason: int | None = None  #: the stop id that ended it
        self.error: str | None = None
        self.pooled: Any = None  #: what the executor made of the prompt, where the task is to pool
        self.num_nans = 0  #: values among the logits it was sampled from that were no numbers
        self.kv_transfer: Mapping[str, Any] | None = None  #: what a prefix source said when it ended

    @property
    def status(self) -> Status:
        return self._status

    @property
    def finished(self) -> bool:
        return self._status.finished

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._status.finish_reason

    @property
    def prompt(self) -> list[int]:
        """As long as it is by now."""
        return self.tokens[: self.num_prompt].tolist()

    @property
    def num_samples(self) -> int:
        """Tokens to be sampled when all that is known is computed."""
        return self.width if self.spec.task is Task.GENERATE else 0

    @property
    def plain(self) -> bool:
        """Whether its next step, like all that follow, is one token in and one token out."""
        return self.num_samples == 1 and self.constraint is None and not self.input_open

    @property
    def idle(self) -> bool:
        """Whether it has computed all that it may before more of its prompt comes."""
        return self.input_open and self.computed >= self.target

    @property
    def outputs(self) -> list[int]:
        return self.tokens[self.num_prompt :].tolist()

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def target(self) -> int:
        """Tokens to have computed once all that is known and promised is caught up with.

        The last token of a request is never computed: nothing would be sampled from it. A request cannot be planned
        ahead of a result that it depends on: of its first ``n`` samples, of drafts, of a constrained token. While
        the prompt may still grow its last token is left, so that there is something to sample from in the end.
        """
        if self.input_open:
            return len(self.tokens) - 1
        if self.promised and (self.width > 1 or self.verifying or self.constraint is not None):
            return self.computed
        return min(len(self.tokens) + self.promised + len(self.drafts), self.max_total - 1)

    def on(self, event: Event) -> None:
        """Change the status. Raises ``IllegalTransition`` for an event the state does not know."""
        self._status = transition(self.spec.id, self._status, event)
        if self.listener is not None:
            self.listener.changed(self, event)

    def grow_prompt(self, tokens: Sequence[int], max_total: int) -> None:
        """More of the prompt came."""
        self.tokens.extend(tokens)
        self.set_prompt(self.num_prompt + len(tokens), max_total)

    def set_prompt(self, num_prompt: int, max_total: int) -> None:
        """The prompt is longer than the one it was submitted with."""
        self.num_prompt = num_prompt
        self.max_total = max_total
        self.stop_from = num_prompt + self.spec.params.min_tokens

    def drop_kv(self) -> None:
        """Forget what was computed: the blocks are gone."""
        self.computed = 0
        self.capacity = 0
        self.settle_at = 0
        self.leave_executor()

    def leave_executor(self) -> None:
        """The executor forgets the row; nothing that is under way for it is counted on any more."""
        self.promised = 0
        self.drafts = ()
        self.verifying = 0
        self.epoch += 1
        self.resident = False

    def disown(self) -> None:
        """Nothing that is under way is to be accepted."""
        self.epoch += 1

    def awaits(self, epoch: int, num_tokens: int) -> bool:
        """Whether a result of an earlier epoch is still good: what was sampled after ``num_tokens`` tokens.

        It is when the request was preempted once since and has not come back: it would sample the same token then.
        """
        waits = not self.finished and not self.resident
        return waits and self.epoch == epoch + 1 and len(self.tokens) == num_tokens

    def __repr__(self) -> str:
        return f"<Request {self.id!r} {self._status.value} {self.computed}/{len(self.tokens)} tokens>"
