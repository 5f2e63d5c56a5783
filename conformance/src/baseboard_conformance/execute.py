"""Doing one case on an open backend: the claim first, then the body."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from numpy.typing import NDArray

from baseboard.contract import BackendFault, Unsupported
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case, NotObservable
from baseboard_conformance.outcome import CheckFailedError, Outcome, Result
from baseboard_conformance.scenario import Scenario, geometry

#: Modules that only work on what the suite itself has made.
_JUDGES: Final = frozenset({"oracle", "naive", "numerics", "problem", "verdict", "diagnosis", "evidence"})


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A case that was done."""

    result: Result
    evidence: Mapping[str, NDArray[Any]]  #: arrays that show a failure
    lost: bool = False  #: the backend must be opened anew, in another process


def execute(case: Case, bench: Bench) -> Done:
    """Do the case. Only Ctrl-C passes."""
    began = time.perf_counter()
    result = Result(case.id, Outcome.PASS, seed=bench.seed)
    evidence: Mapping[str, NDArray[Any]] = {}
    lost = False
    try:
        result = _claimed(case, bench, result)
    except CheckFailedError as failure:
        result = replace(result, outcome=Outcome.FAIL, message=str(failure), measures=failure.measures)
        evidence = failure.evidence
    except NotObservable as reason:
        result = replace(result, outcome=Outcome.NOT_CLAIMED, message=f"cannot be observed here: {reason}")
    except SystemExit as stop:
        words = f"the backend called sys.exit({stop.code!r})\n{_trace(stop)}"
        result, lost = replace(result, outcome=Outcome.CRASH, message=words), True
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _is_our_own(error):
            words = f"the suite raised {type(error).__name__}: {error}\n{_trace(error)}"
            result = replace(result, outcome=Outcome.ERROR, message=words)
        else:
            result, lost = (
                replace(result, outcome=Outcome.FAIL, message=_raised(error)),
                isinstance(error, BackendFault),
            )
    return Done(replace(result, duration=time.perf_counter() - began), evidence, lost)


def _claimed(case: Case, bench: Bench, result: Result) -> Result:
    missing = case.need.missing(bench.can)
    if not missing:
        return replace(result, measures=dict(case.body(bench)))
    words = "not declared: " + ", ".join(missing)
    if case.probe is not None and case.need.refusable(bench.can):
        check_refused(bench, case.probe, words)
        words += "; and refused, as it must be"
    return replace(result, outcome=Outcome.NOT_CLAIMED, message=words)


def check_refused(bench: Bench, scenario: Scenario, words: str) -> None:
    """What is not declared must be refused by ``unsupported`` and by ``attention_kernel``."""
    made = geometry(scenario, bench.can)
    reasons = bench.hook.unsupported(kv=made.kv, attention=made.attention)
    require(reasons, f"{words}; yet unsupported() has nothing against it: {made.attention}, {made.kv}")
    blank = [reason for reason in reasons if not str(reason).strip()]
    require(not blank, f"{words}; unsupported() gives an empty reason: {reasons!r}")
    try:
        bench.hook.attention_kernel(attention=made.attention, kv=made.kv)
    except Unsupported:
        return
    raise CheckFailedError(f"{words}, and unsupported() says so; yet attention_kernel() makes a kernel for it")


def _is_our_own(error: BaseException) -> bool:
    """Whether it came up where no backend has a hand in: while the right answer was worked out."""
    names = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_suite = [name for name in names if name.partition(".")[0] == __package__]
    return bool(of_suite) and of_suite[-1].rpartition(".")[2] in _JUDGES


def _raised(error: BaseException) -> str:
    lost = " (the device is lost)" if isinstance(error, BackendFault) else ""
    return f"the backend raised {type(error).__name__}: {error}{lost}\n{_trace(error)}"


def _trace(error: BaseException) -> str:
    """The last frames: those of the backend."""
    return "".join(traceback.format_tb(error.__traceback__)[-4:])
