"""Cases of ``graph_runner``: what they ask for, and what they tell when a replay is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from baseboard.contract import LayerKind, hookimpl
from baseboard.discovery import Installation, PluginSource, open_backend
from baseboard_conformance.bench import Bench
from baseboard_conformance.cases import all_cases
from baseboard_conformance.execute import execute
from baseboard_conformance.mutants import recording, right, wrong_graphs, wrong_masks
from baseboard_conformance.mutants.plugins import MutantPlugin
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.recorded_steps import SIZES, decoding, moved, nothing, padded, record_steps, unrecorded
from baseboard_conformance.scenario import Scenario

SCENARIO = Scenario("float32", "decode", block_size=16)


@contextmanager
def bench_of(place: str, made: type) -> Iterator[Bench]:
    class Plugin(MutantPlugin):
        @hookimpl
        def open_backend(self, device, options):
            return made(options)

    source = PluginSource("guest", "guest", "here", "0", lambda: Plugin("guest", place))
    with open_backend("guest", installation=Installation(backends=(source,))) as backend:
        yield Bench(backend, "guest", seed=5, shrinking=0)


def outcome_of(made: type, case: str) -> Result:
    with bench_of("guest", made) as bench:
        return execute(all_cases()[case], bench).result


def test_padding_has_slots_of_its_own_in_the_null_block() -> None:
    with bench_of("guest", right.Plain) as bench:
        state = unrecorded(decoding(SCENARIO, bench), bench)
        group = state.groups[0]
        batch = padded(group.step((4, 0), (0, 0, 0, 0, 3)), 4, state.width)
        tables = group.whole.tables
    # Sequence 4 has 2 * 16 + 3 tokens and made three steps; sequence 0 has one token. Both get one more.
    assert batch.seq_lens.tolist() == [39, 2, 1, 1]
    assert batch.positions.tolist() == [38, 1, 0, 0]
    assert batch.slot_mapping.tolist() == [tables[4][2] * 16 + 6, tables[0][0] * 16 + 1, 0, 1]
    assert batch.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert (batch.num_decodes, batch.max_query_len, batch.max_seq_len) == (4, 1, 39)
    assert batch.block_tables.shape == (4, state.width)
    assert batch.block_tables[0].tolist() == [*tables[4][:3].tolist(), *[0] * (state.width - 3)]
    assert not batch.block_tables[2:].any()


def test_steps_are_recorded_in_slots_that_nobody_owns_yet() -> None:
    batch = nothing(8, 3)
    assert batch.slot_mapping.tolist() == list(range(8))
    assert batch.seq_lens.tolist() == [1] * 8
    assert not batch.block_tables.any()


def test_sequences_move_to_blocks_that_nobody_has() -> None:
    with bench_of("guest", right.Plain) as bench:
        group = unrecorded(decoding(SCENARIO, bench), bench).groups[0]
        elsewhere, pairs = moved(group, np.random.default_rng(0))
    old, new = np.concatenate(group.whole.tables), np.concatenate(elsewhere.whole.tables)
    assert pairs.tolist() == np.stack([old, new], axis=1).tolist()
    assert not set(old.tolist()) & set(new.tolist())
    assert 0 not in new
    assert len(set(new.tolist())) == len(new)


def test_every_size_is_recorded_once_before_the_pool_holds_anything() -> None:
    asked: list[tuple[LayerKind, ...]] = []
    sizes: list[int] = []

    class Watched(recording.Recording):
        @hookimpl
        def graph_runner(self, layers):
            asked.append(tuple(layers))
            return self

        def capture(self, metadata, compute):
            assert len(metadata) == 2
            sizes.append(len(metadata[0].lengths))
            return super().capture(metadata, compute)

    with bench_of("guest", Watched) as bench:
        state = record_steps(SCENARIO, bench)
        (kinds,) = asked
        assert kinds == (LayerKind(state.groups[0].whole.geometry.attention, state.groups[0].whole.geometry.kv),)
    assert sizes == sorted(SIZES, reverse=True)


def test_a_wrong_replay_is_told_from_a_wrong_kernel() -> None:
    replay = outcome_of(wrong_graphs.ReplaysOldLengths, "graph.replays/plain/float32")
    assert replay.outcome is Outcome.FAIL
    assert "told kernel by kernel the same step is right: the replay is at fault" in replay.message
    assert "sequences in a size of" in replay.message

    class WrongKernel(recording.Recording):
        Kernel = wrong_masks.PartialBlockDropped.Kernel

    kernel = outcome_of(WrongKernel, "graph.replays/plain/float32")
    assert kernel.outcome is Outcome.FAIL
    assert "told kernel by kernel the same step is wrong as well: begin there" in kernel.message


def test_a_replay_that_writes_nothing_is_found() -> None:
    class Idle(recording.Recording):
        class Graph(recording.TapeGraph):
            def replay(self, metadata) -> None:
                pass

    told = outcome_of(Idle, "graph.padding/plain/float32")
    assert (told.outcome, told.message) == (Outcome.FAIL, "a replay wrote no block of its sequences")
    assert outcome_of(Idle, "graph.replays/plain/bfloat16").outcome is Outcome.FAIL


def test_what_is_no_runner_is_told() -> None:
    class NoRunner(right.Plain):
        @hookimpl
        def graph_runner(self, layers):
            return "later"

    told = outcome_of(NoRunner, "graph.replays/plain/float32")
    assert told.outcome is Outcome.FAIL
    assert "graph_runner gave 'later'; right is a GraphRunner, or None" in told.message


def test_a_refusal_without_a_reason_is_told() -> None:
    class Silent(recording.Recording):
        def listen(self, recorder, compute) -> None:
            try:
                super().listen(recorder, compute)
            except recording.Unsupported:
                raise recording.Unsupported([]) from None

    told = outcome_of(Silent, "graph.refused/plain/float32")
    assert (told.outcome, told.message) == (Outcome.FAIL, "capture raised Unsupported without a reason")


@pytest.mark.parametrize("name", ["replays", "moved", "padding", "refused"])
def test_who_records_nothing_claims_nothing(name) -> None:
    told = outcome_of(right.Plain, f"graph.{name}/plain/float32")
    assert told.outcome is Outcome.NOT_CLAIMED
    assert "records no steps" in told.message


def test_fewer_sequences_than_the_sizes_need_are_not_claimed() -> None:
    class Narrow(recording.Recording):
        can = replace(recording.Recording.can, max_seqs=4)

    told = outcome_of(Narrow, "graph.replays/plain/float32")
    assert (told.outcome, told.message) == (Outcome.NOT_CLAIMED, "not declared: 8 sequences in one step")
