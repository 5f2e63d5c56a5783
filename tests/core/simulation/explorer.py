"""Every state that a small world can reach, under every order of events.

A state is a whole simulation, pickled. Two that differ in names of blocks or in counters only are one. From each state
every event is tried; whatever new state it leads to is checked, and run to its end to see that everybody can finish
there with the right tokens.
"""

from __future__ import annotations

import copyreg
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakSet

from baseboard.kv.limbo import LimboPool
from baseboard.request import request as request_module
from baseboard.request.request import Request
from baseboard.request.status import Event, Status
from baseboard.testing import Handle, Simulation
from baseboard.testing.grammar import Grammar

copyreg.pickle(WeakSet, lambda members: (WeakSet, (list(members),)))

Change: TypeAlias = Callable[["World"], None]


@dataclass(frozen=True)
class Bounds:
    """A small world: the simulation's limits, the requests that may come, and what may be done to it."""

    name: str
    settings: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]
    preempt: Sequence[str] = ()  #: modes
    interfere: Sequence[str] = ()  #: of "abort", "reset", "fail", "fork"
    offers: Sequence[Mapping[str, Any]] = ()  #: KV that lies outside from the beginning
    grammars: Mapping[int, Grammar] = field(default_factory=dict)  #: of some of the requests
    pieces: Mapping[int, Sequence[Sequence[int]]] = field(default_factory=dict)  #: of prompts that are streamed


@dataclass
class World:
    """A simulation and what is still to happen in it."""

    sim: Simulation
    bounds: Bounds
    handles: list[Handle] = field(default_factory=list)
    num_forks: int = 0
    num_failures: int = 0
    num_pieces: dict[int, int] = field(default_factory=dict)  #: that each streamed prompt has got

    # --- events -------------------------------------------------------------------------------------------------

    def events(self) -> Iterator[tuple[str, Change]]:
        """All that may happen next."""
        yield "step", World.step
        if self.sim._flights:
            yield "land", World.land
        if len(self.handles) - self.num_forks < len(self.bounds.requests):
            yield "submit", World.submit
        if "reset" in self.bounds.interfere and self.sim.cached_blocks:
            yield "reset", World.reset
        if "fail" in self.bounds.interfere and not self.num_failures:
            yield "fail", World.fail
        for at, handle in enumerate(self.handles):
            if not handle.status.finished:
                yield from self._events_of(at, handle)

    def _events_of(self, at: int, handle: Handle) -> Iterator[tuple[str, Change]]:
        if "abort" in self.bounds.interfere:
            yield f"abort {at}", _Do(at, "abort")
        if "fork" in self.bounds.interfere and handle.request.num_outputs and not self.num_forks:
            yield f"fork {at}", _Do(at, "fork")
        if handle.status == "running" or (handle.request.input_open and handle.request.resident):
            yield from ((f"{mode} {at}", _Do(at, mode)) for mode in self.bounds.preempt)
        if handle.status == "waiting_for_grammar":
            yield f"grammar {at}", _Do(at, "grammar")
        if handle.request.input_open:
            yield f"input {at}", _Do(at, "input")

    def step(self) -> None:
        self.sim.step()

    def land(self) -> None:
        self.sim._land()

    def submit(self) -> None:
        number = len(self.handles) - self.num_forks
        grammar = self.bounds.grammars.get(number)
        self.handles.append(self.sim.submit(request_id=f"q{number}", grammar=grammar, **self.bounds.requests[number]))

    def reset(self) -> None:
        self.sim.reset_prefix_cache()

    def fail(self) -> None:
        self.num_failures += 1
        self.sim.fail_next_step()

    # --- what is compared -----------------------------------------------------------------------------------------

    def fingerprint(self) -> object:
        """All that decides what may follow; blocks are named in the order in which they are met."""
        scheduler, kv = self.sim.scheduler, self.sim.scheduler.kv
        names: dict[object, int] = {}

        def named(space: str, blocks: Sequence[int]) -> tuple[int, ...]:
            return tuple([names.setdefault((space, block), len(names)) for block in blocks])

        live = [handle for handle in self.handles if not handle.status.finished]
        samples = [sample for handle in live for sample in handle.samples if sample.request.id == sample.id]
        requests = {sample.request for sample in samples}
        return (
            len(self.handles),
            self.num_forks,
            self.num_failures,
            self.sim.device._fail_next,
            tuple(self._of_request(sample.request) for sample in samples),
            tuple(
                (named("d", table.blocks), named("h", table.host_blocks), sequence.num_published, sequence.outdated)
                for owner, sequence in sorted(kv._sequences.items())
                for table in sequence.tables
            ),
            named("d", kv.pool.free_list),
            tuple(sorted((named("d", [block])[0], key) for key, block in kv.index._block_of.items())),
            named("h", kv.host.free_list),
            tuple(
                tuple((r.id, r.epoch == e, s, c) for r, e, s, c in self._rows_of(flight) if r in requests)
                for flight in scheduler._flights
            ),
            tuple(sorted(scheduler._book._retired)),
            tuple((r.id, len(pairs)) for r, pairs in scheduler._book._moving.items()),
            self._of_connector(),
            self._of_device_out_of_order(named),
        )

    def _of_device_out_of_order(self, named: Callable[[str, Sequence[int]], tuple[int, ...]]) -> object:
        pool, kept = self.sim.scheduler.kv.pool, self.sim.scheduler._planner._kept_waiting
        if not isinstance(pool, LimboPool):
            return ()
        resting = [(named("d", [block]), until - pool._planned) for block, until in pool._resting.items()]
        return pool._planned - pool._landed, tuple(resting), kept and kept.id

    def _rows_of(self, flight: Any) -> Iterator[tuple[Request, int, int, int]]:
        return zip(flight.requests, flight.epochs, flight.plan.starts, flight.plan.counts, strict=True)

    def _of_request(self, request: Request) -> object:
        return (
            request.id, request.status, len(request.tokens), request.computed, request.promised, request.resident,
            request.width, request.drafts, request.verifying, request.capacity, request.input_open, request.started,
        )  # fmt: skip

    def _of_connector(self) -> object:
        connector = self.sim.connector
        sending = [(r.id, s.lands_at and s.lands_at - connector._step) for r, s in connector._sending.items()]
        return tuple(sorted(sending, key=repr))


@dataclass(frozen=True)
class _Do:
    """Something done to one request."""

    at: int
    what: str

    def __call__(self, world: World) -> None:
        handle, sim = world.handles[self.at], world.sim
        if self.what == "abort":
            sim.abort(handle)
        elif self.what == "fork":
            world.num_forks += 1
            world.handles.append(sim.fork(handle))
        elif self.what == "grammar":
            sim.grammar_ready(handle)
        elif self.what == "input":
            given = world.num_pieces.setdefault(self.at, 0)
            pieces = world.bounds.pieces.get(self.at, ())
            world.num_pieces[self.at] += 1
            sim.end_input(handle) if given == len(pieces) else sim.add_input(handle, pieces[given])
        else:
            sim.preempt(handle, self.what)


_ENDS = (Event.ABORT, Event.STOP, Event.REACH_LIMIT, Event.FAIL, Event.REPEAT, Event.IGNORE)


@dataclass
class Explored:
    num_states: int = 0
    num_events: int = 0
    covered: set[tuple[Event, Status]] = field(default_factory=set)  #: pairs of the transition table that occurred


def explore(bounds: Bounds, most_states: int = 1_000_000) -> Explored:
    """Visit every state. Raises ``AssertionError`` naming the events that lead to a state that is wrong."""
    world = World(Simulation(**bounds.settings), bounds)
    for offer in bounds.offers:
        world.sim.connector.offer(**offer)
    seen = {world.fingerprint()}
    to_do = deque([(pickle.dumps(world), ())])
    explored = Explored(num_states=1)
    with watching(explored.covered):
        _visit(to_do, seen, explored, bounds.name, most_states)
    return explored


def _visit(
    to_do: deque[tuple[bytes, tuple[str, ...]]], seen: set[object], explored: Explored, name_: str, most_states: int
) -> None:
    while to_do:
        frozen, path = to_do.popleft()
        for name, change in pickle.loads(frozen).events():
            explored.num_events += 1
            reached = pickle.loads(frozen)
            way = (*path, name)
            try:
                change(reached)
                reached.sim.check()
                mark = reached.fingerprint()
                if mark in seen:
                    continue
                seen.add(mark)
                to_do.append((pickle.dumps(reached), way))
                explored.num_states += 1
                _finish(reached, explored.covered)
            except Exception as wrong:
                raise AssertionError(f"{name_}: after {' / '.join(way)}: {wrong!r}") from wrong
            assert explored.num_states <= most_states, f"{name_}: more than {most_states} states"


def end_everybody(world: World, event: Event) -> None:
    """Whatever state each request is in, it can be ended from outside."""
    for handle in world.handles:
        world.sim.scheduler.finish(handle.request, event)


@contextmanager
def watching(covered: set[tuple[Event, Status]]) -> Iterator[None]:
    """Note every transition that a request goes through."""
    real = request_module.transition

    def transition(request_id: str, status: Status, event: Event) -> Status:
        covered.add((event, status))
        return real(request_id, status, event)

    request_module.transition = transition
    try:
        yield
    finally:
        request_module.transition = real


def _finish(world: World, covered: set[tuple[Event, Status]]) -> None:
    """Nobody interferes any more: all requests end, with the right tokens, and all blocks come back."""
    frozen = pickle.dumps(world)
    for handle in world.handles:
        if handle.status == "waiting_for_grammar":
            world.sim.grammar_ready(handle)
        world.sim.end_input(handle)
    world.sim.run(max_steps=200)
    for handle in (sample for first in world.handles for sample in first.samples):
        assert handle.tokens == world.sim.solo(handle)[: len(handle.tokens)], f"{handle!r} is not what it is alone"
        assert handle.pooled in (None, world.sim.solo_pooled(handle))
        assert handle.finish_reason, f"{handle!r} has not ended"
    _all_back(world)
    live = [request.status for request in pickle.loads(frozen).sim.scheduler._book._requests.values()]
    for event in _ENDS:
        if all((event, status) in covered for status in live):
            continue
        other = pickle.loads(frozen)
        end_everybody(other, event)
        other.sim.run(max_steps=20)
        _all_back(other)


def _all_back(world: World) -> None:
    sim = world.sim
    sim.step()
    sim.run()
    sim.check()
    assert sim.free_blocks == sim.scheduler.kv.pool.num_blocks, "blocks are missing"
    assert sim.free_host_blocks == sim.scheduler.kv.host.num_blocks, "host blocks are missing"
    assert sim.device.num_rows == 0, "the device holds a row of nobody"
