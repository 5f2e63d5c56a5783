"""Guard: calls another party's code, so that what it does wrong ends one request and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from baseboard.contract.errors import ContractError
from baseboard.request.request import RequestSpec
from baseboard.scheduler.faults import Fault, Faults

_T = TypeVar("_T")


class Guard:
    """For all roles of one plugin. ``plugin`` names it in every fault."""

    def __init__(self, plugin: str, faults: Faults) -> None:
        self._plugin: Final = plugin
        self._faults: Final = faults

    def ask(self, specs: tuple[RequestSpec, ...] | None, what: str, call: Callable[[], _T], otherwise: _T) -> _T:
        """What ``call`` gives. Where it raises: ``otherwise``, and a fault that touches these requests, or all."""
        try:
            return call()
        except (Exception, SystemExit) as error:  # whatever another party raises, the engine goes on
            reason = f"scheduling plugin {self._plugin!r} failed in {what}: {_said(error)}"
            self._faults.add(Fault(specs, reason))
            return otherwise


def whole(answer: object, least: int, most: int) -> int:
    """``answer``, a whole number within bounds. Raises ``ContractError`` for any other."""
    if isinstance(answer, bool) or not isinstance(answer, int) or not least <= answer <= most:
        raise ContractError(f"it gave {answer!r}, not a whole number from {least} to {most}")
    return answer


def one_of(answer: object, kind: type[_T]) -> _T:
    """``answer``, of this type. Raises ``ContractError`` for any other."""
    if not isinstance(answer, kind):
        raise ContractError(f"it gave {answer!r}, not {kind.__name__}")
    return answer


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, ContractError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
