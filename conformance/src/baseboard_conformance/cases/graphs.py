"""``graph_runner``: None, or replays that give what the step gives kernel by kernel. Provisional: few record so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from baseboard.contract import LayerKind, Unsupported
from baseboard_conformance.bench import Bench, plane_bytes, raising_only, require
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases.attention import DTYPES
from baseboard_conformance.judging import told
from baseboard_conformance.outcome import CheckFailedError
from baseboard_conformance.recorded_steps import (
    GROUPS,
    SIZES,
    Replayed,
    Replaying,
    decoding,
    moved,
    nothing,
    record_steps,
    runner_of,
    unrecorded,
)
from baseboard_conformance.scenario import Scenario
from baseboard_conformance.verdict import POLICY, Measure, judge

#: Which sequences make a step, in which order, and in which size: full ones, padded ones, others in the same place.
_STEPS: Final = (
    ((0, 1), 2),
    ((2, 3, 4), 4),
    ((4, 0), 2),
    ((4, 3, 2, 1, 0), 8),
    ((1, 2, 4, 3), 4),
    ((3,), 2),
    ((1, 0), 2),
)


def _replays(scenario: Scenario, bench: Bench) -> dict[str, float]:
    """All steps are told one after the other; only then the host looks at what came of them."""
    state = record_steps(scenario, bench)
    steps = [state.plan(active, size) for active, size in _STEPS]
    measure = _right(state, state.replay(steps), "replays of recorded steps")
    for buffers in state.buffers.values():
        for each in buffers:
            for buffer in (each.query, each.key, each.value, each.out):
                buffer.check_bands()
    return measure.as_dict()


def _moves(scenario: Scenario, bench: Bench) -> dict[str, float]:
    """Between two replays the sequences are copied to other blocks, and those that they had are given away."""
    state = record_steps(scenario, bench)
    everyone = range(len(state.done))
    before = [state.plan(everyone, SIZES[-1]), state.plan((0, 1), SIZES[0])]
    _right(state, state.replay(before), "replays of recorded steps")
    changed = [moved(group, bench.rng) for group in state.groups]
    for group, pairs in changed:
        bench.hook.copy_blocks(cache=group.cache, pairs=pairs)
        bench.hook.zero_blocks(cache=group.cache, blocks=pairs[:, 0].copy())
    state.groups = tuple(group for group, _ in changed)
    after = [state.plan((0, 1), SIZES[0]), state.plan(everyone, SIZES[-1])]
    return _right(state, state.replay(after), "replays after the sequences moved to other blocks").as_dict()


def _right(state: Replaying, replays: list[Replayed], what: str) -> Measure:
    """Hold each step's results against the oracle; the worst measure."""
    worst: Measure | None = None
    for number, replayed in enumerate(replays):
        step = replayed.step
        for group, (problem, out) in enumerate(zip(step.problems, replayed.outs, strict=True)):
            got, against = state.bench.host(out)[: len(problem.rows)], problem.yardstick()
            measure = judge(got, against)
            worst = measure if worst is None or measure.worst > worst.worst else worst
            if not measure.passed:
                eager = judge(state.eagerly(step)[group], against).passed
                size, place = f"{len(problem.rows)} sequences in a size of {step.size}", f"group {group} of layers"
                words = "right: the replay is at fault" if eager else "wrong as well: begin there"
                lines = [
                    *told(problem, got, against, measure, what),
                    f"this was replay {number + 1} of {len(replays)}: {size}, {place}",
                    f"told kernel by kernel the same step is {words}",
                ]
                raise CheckFailedError("\n".join(lines), None, measure.as_dict())
    assert worst is not None, "there are steps"
    return worst


def _padding(scenario: Scenario, bench: Bench) -> dict[str, float]:
    state = record_steps(scenario, bench)
    size_of_block = state.groups[0].whole.geometry.kv.block_size
    for active, size in _STEPS:
        before = [plane_bytes(bench, group.cache) for group in state.groups]
        step = state.plan(active, size)
        state.replay([step])
        for group, batch, old in zip(state.groups, step.batches, before, strict=True):
            owned = set((batch.slot_mapping // size_of_block).tolist()) | {0}
            changed = {
                block
                for a, b in zip(old, plane_bytes(bench, group.cache), strict=True)
                for block in np.flatnonzero((a != b).any(axis=1)).tolist()
            }
            stray = sorted(changed - owned)
            require(
                not stray,
                f"a replay of {len(active)} sequences in a size of {size} wrote blocks {stray[:8]}; its tokens lie in "
                f"{sorted(owned - {0})}, and its padding in the null block",
            )
            require(changed - {0}, "a replay wrote no block of its sequences")
    return {}


def _refused(scenario: Scenario, bench: Bench) -> dict[str, float]:
    """A step that asks the device for numbers while it is recorded."""
    made = decoding(scenario, bench)
    runner = runner_of(bench, [LayerKind(made.attention, made.kv)])
    state = unrecorded(made, bench)
    state.record(runner, SIZES[0])
    own = state.buffers[SIZES[0]][0]

    def asks() -> None:
        own.query.inner.fill_(float(own.out.inner.float().sum().item()))

    try:
        with raising_only(Unsupported, "capture of work that cannot be recorded"):
            runner.capture(metadata=state.metadata([nothing(SIZES[0], state.width)] * GROUPS), compute=asks)
    except Unsupported as error:
        require(error.reasons, "capture raised Unsupported without a reason")
    state.record(runner, SIZES[1])
    state.load()
    steps = [state.plan((0, 1), SIZES[0]), state.plan((2, 1, 4), SIZES[1])]
    return _right(state, state.replay(steps), "replays after a capture that may have been refused").as_dict()


@dataclass(frozen=True, slots=True)
class _Kind:
    clause: str
    check: Callable[[Scenario, Bench], Mapping[str, float]]
    profile: Profile = Profile.CORE
    tolerance: str = POLICY


_KINDS: Final[Mapping[str, _Kind]] = {
    "replays": _Kind(
        "a replay enqueues what was recorded, with the numbers of new metadata for a batch of the same shapes",
        _replays,
        Profile.SMOKE,
    ),
    "moved": _Kind("a replay reads the block tables of its own metadata: blocks move, and are given away", _moves),
    "padding": _Kind("padding of a recorded step is kept in the null block", _padding, Profile.SMOKE, "exact"),
    "refused": _Kind("work that cannot be recorded is Unsupported, with the reason; then nothing is kept", _refused),
}


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for name, kind in _KINDS.items():
            yield _case(f"graph.{name}/plain/{dtype}", kind, Scenario(dtype, "decode"))
        yield _case(f"graph.replays/window/{dtype}", _KINDS["replays"], Scenario(dtype, "decode", window=17))


def _case(name: str, kind: _Kind, scenario: Scenario) -> Case:
    return Case(
        id=name,
        title=kind.clause,
        clause=kind.clause,
        oracle="NumPy float64; where it differs, the same step kernel by kernel"
        if kind.tolerance == POLICY
        else "bytes",
        body=partial(kind.check, scenario),
        profile=kind.profile,
        need=replace(scenario.need, seqs=max(SIZES)),
        params={**scenario.as_dict(), "layout": "recorded decodes", "sizes": list(SIZES)},
        probe=scenario,
        tolerance=kind.tolerance,
    )
