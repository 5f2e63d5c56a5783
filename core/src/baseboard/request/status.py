"""The states of a request and the only table that says how one leads to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from baseboard.contract.errors import BaseboardError

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error", "repetition", "ignored"]


class Status(str, Enum):
    WAITING = "waiting"  #: holds no KV, has not started
    WAITING_FOR_GRAMMAR = "waiting_for_grammar"  #: may not start before its grammar is compiled
    WAITING_FOR_STREAMING_INPUT = "waiting_for_streaming_input"  #: has computed what it was given, and keeps its place
    WAITING_FOR_REMOTE_KV = "waiting_for_remote_kv"  #: holds the blocks that its keys and values are sent to
    LOADED = "loaded"  #: they have landed; waits for its turn
    RUNNING = "running"  #: holds device blocks, may be given tokens in any step
    PREEMPTED = "preempted"  #: gave its blocks back, will compute its tokens again
    SWAPPED = "swapped"  #: its KV lies in the host pool
    STOPPED = "stopped"  #: finished by a stop token or text
    LENGTH_CAPPED = "length_capped"  #: finished by ``max_tokens``, the model's length or the pool's size
    ABORTED = "aborted"
    REPETITION = "repetition"  #: finished for going round in circles
    FAILED = "failed"
    IGNORED = "ignored"  #: given up before it had begun

    @property
    def finished(self) -> bool:
        return self in FINISH_REASONS

    @property
    def finish_reason(self) -> FinishReason | None:
        return FINISH_REASONS.get(self)


class Event(str, Enum):
    ADMIT = "admit"
    PREEMPT = "preempt"
    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    STOP = "stop"
    REACH_LIMIT = "reach_limit"
    ABORT = "abort"
    FAIL = "fail"
    REPEAT = "repeat"
    AWAIT_GRAMMAR = "await_grammar"
    GRAMMAR_READY = "grammar_ready"
    AWAIT_REMOTE_KV = "await_remote_kv"
    REMOTE_KV_LANDED = "remote_kv_landed"
    AWAIT_INPUT = "await_input"
    INPUT_CAME_NEW = "input_came_new"  #: for a request that has never run
    INPUT_CAME = "input_came"  #: for one that holds device blocks
    INPUT_CAME_SWAPPED = "input_came_swapped"
    INPUT_CAME_PREEMPTED = "input_came_preempted"
    IGNORE = "ignore"


FINISH_REASONS: Final[Mapping[Status, FinishReason]] = MappingProxyType(
    {
        Status.STOPPED: "stop",
        Status.LENGTH_CAPPED: "length",
        Status.ABORTED: "abort",
        Status.FAILED: "error",
        Status.REPETITION: "repetition",
        Status.IGNORED: "ignored",
    }
)

_ENDS: Final = {
    Event.STOP: Status.STOPPED,
    Event.REACH_LIMIT: Status.LENGTH_CAPPED,
    Event.ABORT: Status.ABORTED,
    Event.FAIL: Status.FAILED,
    Event.REPEAT: Status.REPETITION,
    Event.IGNORE: Status.IGNORED,
}
_LIVE: Final = tuple(status for status in Status if not status.finished)

#: event x status -> status. A pair that is not here must not happen.
TRANSITIONS: Final[Mapping[tuple[Event, Status], Status]] = MappingProxyType(
    {
        (Event.AWAIT_GRAMMAR, Status.WAITING): Status.WAITING_FOR_GRAMMAR,
        (Event.GRAMMAR_READY, Status.WAITING_FOR_GRAMMAR): Status.WAITING,
        (Event.AWAIT_REMOTE_KV, Status.WAITING): Status.WAITING_FOR_REMOTE_KV,
        (Event.AWAIT_REMOTE_KV, Status.PREEMPTED): Status.WAITING_FOR_REMOTE_KV,
        (Event.REMOTE_KV_LANDED, Status.WAITING_FOR_REMOTE_KV): Status.LOADED,
        (Event.PREEMPT, Status.WAITING_FOR_REMOTE_KV): Status.PREEMPTED,
        (Event.PREEMPT, Status.LOADED): Status.PREEMPTED,
        (Event.ADMIT, Status.LOADED): Status.RUNNING,
        (Event.ADMIT, Status.WAITING): Status.RUNNING,
        (Event.ADMIT, Status.PREEMPTED): Status.RUNNING,
        (Event.PREEMPT, Status.RUNNING): Status.PREEMPTED,
        (Event.PREEMPT, Status.SWAPPED): Status.PREEMPTED,  # its host blocks are given up
        (Event.SWAP_OUT, Status.RUNNING): Status.SWAPPED,
        (Event.SWAP_IN, Status.SWAPPED): Status.RUNNING,
        (Event.AWAIT_INPUT, Status.WAITING): Status.WAITING_FOR_STREAMING_INPUT,
        (Event.AWAIT_INPUT, Status.RUNNING): Status.WAITING_FOR_STREAMING_INPUT,
        # Its blocks may be taken; it comes back when there is something to compute.
        (Event.PREEMPT, Status.WAITING_FOR_STREAMING_INPUT): Status.WAITING_FOR_STREAMING_INPUT,
        (Event.SWAP_OUT, Status.WAITING_FOR_STREAMING_INPUT): Status.WAITING_FOR_STREAMING_INPUT,
        (Event.INPUT_CAME_NEW, Status.WAITING_FOR_STREAMING_INPUT): Status.WAITING,
        (Event.INPUT_CAME, Status.WAITING_FOR_STREAMING_INPUT): Status.RUNNING,
        (Event.INPUT_CAME_SWAPPED, Status.WAITING_FOR_STREAMING_INPUT): Status.SWAPPED,
        (Event.INPUT_CAME_PREEMPTED, Status.WAITING_FOR_STREAMING_INPUT): Status.PREEMPTED,
        **{(event, status): end for event, end in _ENDS.items() for status in _LIVE},
    }
)


class IllegalTransition(BaseboardError):
    """An event met a state that does not know it: a bug in the core, never a user's doing."""


def transition(request_id: str, status: Status, event: Event) -> Status:
    """The status that follows. Raises ``IllegalTransition``."""
    try:
        return TRANSITIONS[event, status]
    except KeyError:
        raise IllegalTransition(f"request {request_id!r}: event {event.value!r} in state {status.value!r}") from None
