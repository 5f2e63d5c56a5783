"""The verdict of a run, worked out from results and manifest alone, so that a reader of a report can do it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from baseboard_conformance.case import Profile
from baseboard_conformance.exits import ExitCode
from baseboard_conformance.manifest import Manifest
from baseboard_conformance.outcome import Outcome, Result


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What the run shows, and why."""

    code: ExitCode
    sentence: str
    counts: Mapping[str, int]  #: of the required cases, by outcome
    num_required: int
    num_provisional: int  #: cases that ran and decide nothing

    @property
    def word(self) -> str:
        return self.code.name.lower().replace("_", " ")


def conclude(results: Sequence[Result], manifest: Manifest, profile: Profile, dtypes: Iterable[str]) -> Conclusion:
    """``dtypes`` are those that the backend declares: attention must have been computed in each of them."""
    required = manifest.required(profile)
    gating = [result for result in results if result.case in required]
    counts = Counter(result.outcome.value for result in gating)
    code, sentence = _judge(gating, required, list(dtypes))
    return Conclusion(code, sentence, dict(sorted(counts.items())), len(required), len(results) - len(gating))


def _judge(results: Sequence[Result], required: frozenset[str], dtypes: Sequence[str]) -> tuple[ExitCode, str]:
    by = {outcome: [r.case for r in results if r.outcome is outcome] for outcome in Outcome}
    executed = sum(result.outcome.executed for result in results)
    bad = [case for outcome in Outcome if outcome.bad for case in by[outcome]]
    if by[Outcome.ERROR]:
        return ExitCode.INTERNAL_ERROR, f"the suite itself failed in {_some(by[Outcome.ERROR])}"
    if bad:
        return ExitCode.NOT_CONFORMANT, f"{len(bad)} of {len(results)} cases failed: {_some(bad)}"
    if not executed:
        return ExitCode.NOTHING_RAN, "no case that counts was executed: that shows nothing"
    if by[Outcome.XPASS]:
        return ExitCode.STALE_WAIVER, f"waived, yet passing: {_some(by[Outcome.XPASS])}"
    absent = required - {result.case for result in results}
    if absent:
        return ExitCode.PARTIAL, f"{len(absent)} of {len(required)} required cases did not run"
    if by[Outcome.WAIVED]:
        return ExitCode.PARTIAL, f"{len(by[Outcome.WAIVED])} cases are waived: {_some(by[Outcome.WAIVED])}"
    idle = [dtype for dtype in dtypes if not _computed(results, dtype)]
    if idle or not dtypes:
        return (
            ExitCode.NOT_CONFORMANT,
            f"no attention was computed in {', '.join(idle) or 'any dtype'}, which is declared",
        )
    return ExitCode.CONFORMANT, f"all {len(required)} required cases hold; {executed} were executed"


def _computed(results: Sequence[Result], dtype: str) -> bool:
    return any(
        r.outcome is Outcome.PASS and r.case.startswith("attention.plain/") and f"/{dtype}/" in r.case for r in results
    )


def _some(cases: Sequence[str]) -> str:
    return ", ".join(cases[:5]) + (f" and {len(cases) - 5} more" if len(cases) > 5 else "")
