"""What lies in slots that no sequence owns never reaches an output, and nothing but the step's slots is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from baseboard.contract import DType
from baseboard_conformance.attending import attend, compute, poisoned_with, prepare
from baseboard_conformance.bench import Bench, plane_bytes, require
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases.attention import DTYPES, FEATURES, numeric
from baseboard_conformance.judging import Story, Trial, check_result
from baseboard_conformance.problem import make_problem
from baseboard_conformance.scenario import Scenario, geometry
from baseboard_conformance.verdict import POLICY

_CONTENTS: Final = {"nan": float("nan"), "inf": float("inf"), "huge": 3e4}
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {name: FEATURES[name] for name in ("window", "softcap", "sinks")}
_CLAUSE: Final = "whatever lies in slots not owned (NaN included) never reaches an output"


@dataclass(frozen=True, slots=True)
class _Same:
    scenario: Scenario

    def run(self, bench: Bench) -> dict[str, float]:
        """Former contents that differ must not even show in the last bit."""
        problem = make_problem(geometry(self.scenario, bench.can), "gauss", bench.seed)
        results = {name: attend(bench, problem, poisoned_with(value)) for name, value in _CONTENTS.items()}
        measures = {}
        for name, got in results.items():
            measures = check_result(bench, problem, got, Story(f"a pool full of {name}", _CONTENTS[name])).as_dict()
        differ = [name for name, got in results.items() if not np.array_equal(got, results["nan"])]
        require(
            not differ, f"the result changes with what lies in slots that nobody owns: {', '.join(differ)} against nan"
        )
        return measures


def check_only_owned(scenario: Scenario, bench: Bench) -> dict[str, float]:
    """A step's write changes blocks that its slots are in, and no byte of the others."""
    problem = make_problem(geometry(scenario, bench.can), "gauss", bench.seed)
    step = prepare(bench, problem, poisoned_with(1.25))
    before = plane_bytes(bench, step.cache)
    compute(bench, step)
    after = plane_bytes(bench, step.cache)
    written = set((step.batch.slot_mapping // problem.geometry.kv.block_size).tolist()) | {0}
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        changed = set(np.flatnonzero((old != new).any(axis=1)).tolist())
        stray = sorted(changed - written)
        require(
            not stray,
            f"plane {number}: blocks {stray[:8]} were written; this step owns slots in {sorted(written)} only",
        )
    require(
        any((old != new).any() for old, new in zip(before, after, strict=True)),
        "no plane changed though the step wrote keys and values: planes must show the cache's own memory",
    )
    return {}


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for name, content in _CONTENTS.items():
            for layout in ("decode", "prefill", "chunked", "mixed", "padded", "single_token_chunk"):
                profile = Profile.SMOKE if layout in {"decode", "padded"} else Profile.CORE
                trial = Trial(Scenario(dtype, layout), ("gauss",), content)
                yield numeric(f"poison.{name}/{layout}/{dtype}", _CLAUSE, trial, profile)
            for feature, options in _OPTIONS.items():
                trial = Trial(Scenario(dtype, "decode", **options), ("gauss",), content)
                yield numeric(f"poison.{name}/{feature}/{dtype}", _CLAUSE, trial, Profile.CORE)
        yield from _exact(dtype)


def _exact(dtype: DType) -> Iterator[Case]:
    for layout in ("decode", "chunked"):
        scenario = Scenario(dtype, layout)
        yield Case(
            id=f"poison.same/{layout}/{dtype}",
            title="the result has the same bits whatever lies in slots that nobody owns",
            clause=_CLAUSE,
            oracle="NumPy float64; and the runs among themselves, bit by bit",
            body=_Same(scenario).run,
            profile=Profile.SMOKE,
            need=scenario.need,
            params=scenario.as_dict(),
            probe=scenario,
            tolerance=POLICY,
        )
    for layout in ("decode", "chunked", "padded"):
        scenario = Scenario(dtype, layout)
        yield Case(
            id=f"kv_write.only_owned/{layout}/{dtype}",
            title="a write touches the blocks of the step's slots only",
            clause="keys and values are stored in the slots of this step",
            oracle="the planes' bytes before and after",
            body=partial(check_only_owned, scenario),
            profile=Profile.SMOKE,
            need=scenario.need,
            params=scenario.as_dict(),
            probe=scenario,
        )
