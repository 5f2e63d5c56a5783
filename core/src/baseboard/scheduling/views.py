"""Requests and steps as other parties see them: as they are now, and nothing of them can be changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from baseboard.request.request import RankKey, Request, RequestSpec
from baseboard.request.status import Status
from baseboard.scheduler.gates import StepView as CoreStepView


def spec_view(spec: RequestSpec) -> RequestSpec:
    """``spec`` as others may have it: frozen as it is, but for the one mapping in it, which is copied."""
    return spec if spec.params.logit_bias is None else replace(spec, params=replace(spec.params))


class _ReadOnly:
    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name} cannot be set to {value!r}: roles decide and change nothing"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted: roles decide and change nothing")


class RequestView(_ReadOnly):
    """A live view of one request. Views of the same request are equal and hash alike."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        object.__setattr__(self, "_request", request)

    _request: Request

    @property
    def spec(self) -> RequestSpec:
        """What the caller asked for: id, prompt, parameters, priority, tenant, adapter, arrival."""
        return spec_view(self._request.spec)

    @property
    def id(self) -> str:
        return self._request.spec.id

    @property
    def status(self) -> Status:
        return self._request.status

    @property
    def rank(self) -> RankKey:
        """Its key, completed by arrival and sample."""
        return self._request.rank

    @property
    def num_tokens(self) -> int:
        """Tokens that are known, prompt and outputs."""
        return len(self._request.tokens)

    @property
    def num_outputs(self) -> int:
        return self._request.num_outputs

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values are in the cache, or will be once the steps under way have run."""
        return self._request.computed

    @property
    def num_samples(self) -> int:
        """Places that it takes: the number of its samples until they go their own ways."""
        return self._request.width

    @property
    def num_preemptions(self) -> int:
        return self._request.num_preemptions

    @property
    def tokens(self) -> tuple[int, ...]:
        """A copy of all that is known."""
        return tuple(self._request.tokens)

    def last(self, count: int) -> tuple[int, ...]:
        """A copy of the last ``count`` tokens, or of all where there are fewer."""
        return tuple(self._request.tokens[-count:]) if count > 0 else ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestView) and other._request is self._request

    def __hash__(self) -> int:
        return hash(self._request)

    def __repr__(self) -> str:
        return f"<RequestView of {self._request!r}>"


class StepView(_ReadOnly):
    """The step that is being made."""

    __slots__ = ("_view",)

    def __init__(self, view: CoreStepView) -> None:
        object.__setattr__(self, "_view", view)

    _view: CoreStepView

    @property
    def now(self) -> float:
        """Seconds of the injected clock."""
        return self._view.inputs.now

    @property
    def num_running(self) -> int:
        """Places taken, samples still to be forked included."""
        return self._view.num_running

    @property
    def running(self) -> tuple[RequestView, ...]:
        """Best rank first."""
        return tuple(map(RequestView, self._view.running))

    @property
    def waiting(self) -> tuple[RequestView, ...]:
        """New and preempted ones, best rank first."""
        return tuple(map(RequestView, self._view.waiting))

    @property
    def adapters(self) -> Collection[str]:
        """Distinct LoRA adapters of running requests."""
        return frozenset(self._view.adapters)
