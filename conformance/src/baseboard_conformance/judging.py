"""Comparing a backend's attention with the oracle, and telling the story when they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from baseboard_conformance.attending import CacheMaker, attend, clean_cache, poisoned_with
from baseboard_conformance.bench import Bench
from baseboard_conformance.diagnosis import diagnose
from baseboard_conformance.evidence import pack
from baseboard_conformance.numerics import Array
from baseboard_conformance.outcome import CheckFailedError
from baseboard_conformance.problem import Problem, make_problem
from baseboard_conformance.scenario import Scenario, geometry
from baseboard_conformance.shrinking import shrink
from baseboard_conformance.verdict import Measure, Yardstick, judge

#: What every numeric case tries: values that add up, and values of which one decides.
BOTH: tuple[str, ...] = ("gauss", "needle")


@dataclass(frozen=True, slots=True)
class Trial:
    """A scenario with inputs of some families, in a pool with some former content."""

    scenario: Scenario
    families: tuple[str, ...] = BOTH
    content: float | None = None  #: of every slot before the sequences come; None: a fresh pool

    @property
    def cache_maker(self) -> CacheMaker:
        return clean_cache if self.content is None else poisoned_with(self.content)


def check_attention(trial: Trial, bench: Bench) -> dict[str, float]:
    """Run all families; the worst measures. Raises ``CheckFailedError`` for the first that is wrong."""
    made = geometry(trial.scenario, bench.can)
    worst: Measure | None = None
    for family in trial.families:
        problem = make_problem(made, family, bench.seed)
        measure = check_problem(bench, problem, trial.content, f"{family} inputs")
        worst = measure if worst is None or measure.worst > worst.worst else worst
    assert worst is not None, "a trial has at least one family"
    return worst.as_dict()


def check_problem(bench: Bench, problem: Problem, content: float | None, what: str) -> Measure:
    """Run one problem and judge it. Raises ``CheckFailedError`` with place, cause and the smallest case that fails."""
    make_cache = clean_cache if content is None else poisoned_with(content)
    got = attend(bench, problem, make_cache)
    return check_result(bench, problem, got, Story(what, content))


@dataclass(frozen=True, slots=True)
class Story:
    """What is told of a failure beside the numbers."""

    what: str
    content: float | None = None  #: of the pool, for the replay


def check_result(bench: Bench, problem: Problem, got: Array, story: Story) -> Measure:
    against = problem.yardstick()
    measure = judge(got, against)
    if measure.passed:
        return measure
    make_cache = clean_cache if story.content is None else poisoned_with(story.content)
    small = shrink(problem, partial(_still_wrong, bench, make_cache), bench.shrinking)
    lines = [
        *told(problem, got, against, measure, story.what),
        f"smallest case found that is still wrong: {_size(small)}",
    ]
    raise CheckFailedError("\n".join(lines), pack(small, story.content), measure.as_dict())


def told(problem: Problem, got: Array, against: Yardstick, measure: Measure, what: str) -> list[str]:
    """Of a result that is wrong: by how much, where, and which common mistake gives that. One line each."""
    return [
        f"attention is wrong with {what}: {_bound(measure)}",
        _where(problem, measure, got, against.truth),
        *diagnose(problem, got, against),
    ]


def _still_wrong(bench: Bench, make_cache: CacheMaker, problem: Problem) -> bool:
    g = problem.geometry
    if bench.hook.unsupported(kv=g.kv, attention=g.attention):
        return False
    return not judge(attend(bench, problem, make_cache), problem.yardstick()).passed


def _bound(measure: Measure) -> str:
    return (
        f"largest error {measure.error:.3g} where {measure.allowed:.3g} is allowed ({measure.ratio:.1f}x), "
        f"largest relative row error {measure.row_error:.3g} where {measure.row_allowed:.3g} is allowed "
        f"({measure.row_ratio:.1f}x)"
    )


def _where(problem: Problem, measure: Measure, got: Array, truth: Array) -> str:
    sequence, position = problem.place(measure.token)
    row = problem.rows[sequence]
    bad = int((~np.isfinite(got)).sum())
    note = f"; {bad} elements are not finite" if bad else ""
    return (
        f"worst row: sequence {sequence} (length {row.seq_len}, {row.query_len} new), position {position}, "
        f"head {measure.head}: got {_some(got[measure.token, measure.head])}, "
        f"right {_some(truth[measure.token, measure.head])}{note}"
    )


def _some(values: Array) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values[:4]) + (", ...]" if len(values) > 4 else "]")


def _size(problem: Problem) -> str:
    g = problem.geometry
    rows = _listed([f"{row.query_len} of {row.seq_len} tokens" for row in problem.rows])
    return (
        f"{g.kv.dtype}, {g.attention.num_heads} heads over {g.kv.num_kv_heads} KV heads "
        f"of size {g.attention.head_size}, blocks of {g.kv.block_size}, "
        f"{len(problem.rows)} sequence(s) computing {rows}"
    )


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:6]) + (", ..." if len(parts) > 6 else "")
