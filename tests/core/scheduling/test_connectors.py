"""Connectors of other parties: one that works, and every way not to; patience, whosever connector it is."""

from __future__ import annotations

from typing import Any

import pytest

from baseboard.request.status import Status
from baseboard.scheduling import Arrived, Found, Landing, RequestView, Transfer
from baseboard.testing import Simulation
from baseboard.testing.model import Slot, namespace_number
from core.scheduling.plugins import ConnectorPlugin, registry
from core.simulation.texts import as_alone, text

NOBODYS = namespace_number(b"")


class Remote:
    """Has the first ``num_tokens`` of everything, and sends it when the test says so."""

    def __init__(self, num_tokens: int = 16) -> None:
        self.num_tokens = num_tokens
        self.began: list[Transfer] = []
        self.cancelled: list[int] = []
        self.kept: list[int] = []
        self.arrivals: list[Arrived] = []
        self.done: list[int] = []
        self.keep = False

    def find(self, request: RequestView, num_local: int) -> Found | None:
        return Found(self.num_tokens - num_local, Landing.LATER) if request.spec.tenant == "remote" else None

    def begin(self, transfer: Transfer) -> None:
        self.began.append(transfer)

    def cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)

    def handover(self, request: RequestView) -> Any:
        return request.spec.kv_transfer and {"from": "far", **request.spec.kv_transfer}

    def keeps(self, request: RequestView, ticket: int) -> bool:
        if self.keep:
            self.kept.append(ticket)
        return self.keep

    def arrived(self) -> list[Arrived]:
        arrivals, self.arrivals = self.arrivals, []
        return arrivals

    def read_out(self) -> list[int]:
        done, self.done = self.done, []
        return done


def simulate(remote: Any, **settings: Any) -> Simulation:
    return Simulation(40, 4, connector="far", registry=registry(far=ConnectorPlugin(remote)), **settings)


def deliver(sim: Simulation, remote: Remote, num_good: int) -> None:
    """What the connector's half in the executor would do, and the word that it is done."""
    transfer = remote.began[-1]
    prompt = transfer.request.spec.prompt
    for position in range(transfer.first, transfer.first + num_good):
        sim.device.memory.write(transfer.blocks[position // 4], position % 4, Slot(prompt[position], position, NOBODYS))
    remote.arrivals.append(Arrived(transfer.ticket, num_good))


def test_what_a_connector_hands_over_comes_back_with_the_end() -> None:
    """Row 53, for another party's connector; what is no mapping ends the request with the connector's name."""
    sim = simulate(Remote())
    h, plain = sim.submit(text(5), max_tokens=2, kv_transfer={"peer": 3}), sim.submit(text(5, 1), max_tokens=2)
    sim.run()
    assert h.request.kv_transfer == {"from": "far", "peer": 3}
    assert plain.request.kv_transfer is None


@pytest.mark.parametrize("num_good", [16, 7, 0])
def test_what_a_connector_sends_is_not_computed(num_good: int) -> None:
    remote = Remote()
    sim = simulate(remote)
    it, other = sim.submit(text(20), max_tokens=4, tenant="remote"), sim.submit(text(5, 1), max_tokens=3)
    sim.step()
    assert it.status is Status.WAITING_FOR_REMOTE_KV
    assert remote.began[0].blocks == tuple(it.blocks)
    deliver(sim, remote, num_good)
    remote.num_tokens = 0
    assert sim.step().tokens[it.id] == 20 - num_good
    sim.run()
    assert as_alone(sim, it, other)


def test_blocks_that_a_connector_still_reads_are_kept_until_it_says_so() -> None:
    remote = Remote(0)
    remote.keep = True
    sim = simulate(remote)
    it = sim.submit(text(8), max_tokens=2)
    sim.run()
    assert it.finish_reason == "length"
    assert sim.free_blocks == 37
    remote.done = [99, *remote.kept]
    sim.step()
    assert sim.free_blocks == 40


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("no route"), "find: RuntimeError: no route"),
        (Found(3, Landing.LATER), "it found 3 tokens, not whole blocks of 4"),
        (Found(20, Landing.LATER), "it gave 20, not a whole number from 0 to 19"),
        (Found(-4, Landing.NOW), "it gave -4, not a whole number from 0 to 19"),
        (Found(8, "later"), "it gave 'later', not Landing"),  # pyright: ignore[reportArgumentType]
        (8, "it gave 8, not Found"),
    ],
)
def test_a_connector_that_fails_to_find_ends_the_request(answer: Any, said: str) -> None:
    class Lost(Remote):
        def find(self, request: RequestView, num_local: int) -> Any:
            if request.spec.tenant is None:
                return None
            if isinstance(answer, Exception):
                raise answer
            return answer

    sim = simulate(Lost())
    it, other = sim.submit(text(20), max_tokens=4, tenant="remote"), sim.submit(text(5, 1), max_tokens=3)
    sim.run()
    assert it.finish_reason == "error"
    assert "scheduling plugin 'far' failed in find" in (it.error or "")
    assert said in (it.error or "")
    assert as_alone(sim, other)
    assert sim.free_blocks == 40


def test_a_connector_that_fails_to_begin_ends_the_request_and_is_called_off() -> None:
    class Weak(Remote):
        def begin(self, transfer: Transfer) -> None:
            raise OSError("link down")

    remote = Weak()
    sim = simulate(remote)
    it, other = sim.submit(text(20), max_tokens=4, tenant="remote"), sim.submit(text(5, 1), max_tokens=3)
    sim.run()
    assert it.error == "scheduling plugin 'far' failed in begin: OSError: link down"
    assert remote.cancelled == [0]
    assert as_alone(sim, other)
    assert sim.free_blocks == 40


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("poll"), "arrived: RuntimeError: poll"),
        (3, "'int' object is not iterable"),
        ([3], "it gave 3, not Arrived"),
        ([Arrived(0, 17)], "it gave 17, not a whole number from 0 to 16"),
        ([Arrived(0, True)], "it gave True, not a whole number from 0 to 16"),
    ],
)
def test_a_connector_that_fails_to_tell_ends_those_that_wait_for_it(answer: Any, said: str) -> None:
    class Mumbling(Remote):
        def arrived(self) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    sim = simulate(Mumbling())
    sim.step()  # nobody waits: nobody is touched
    it, other = sim.submit(text(20), max_tokens=4, tenant="remote"), sim.submit(text(5, 1), max_tokens=3)
    sim.run()
    assert it.finish_reason == "error"
    assert said in (it.error or "")
    assert as_alone(sim, other)
    assert sim.free_blocks == 40


def test_word_of_transfers_that_nobody_waits_for_counts_for_nothing() -> None:
    remote = Remote()
    sim = simulate(remote)
    it = sim.submit(text(20), max_tokens=4, tenant="remote", request_id="same")
    sim.step()
    (old,) = remote.began
    sim.abort(it)
    assert remote.cancelled == [old.ticket]
    again = sim.submit(text(20, 2), max_tokens=4, tenant="remote", request_id="same")
    remote.arrivals = [Arrived(old.ticket, 16), Arrived(77, 16)]
    sim.step()
    assert again.status is Status.WAITING_FOR_REMOTE_KV, "the word was about the other request of this name"
    sim.step()
    assert again.num_computed_tokens == 0
    deliver(sim, remote, 16)
    sim.run()
    assert as_alone(sim, again)


def test_blocks_that_may_still_be_written_to_are_never_used_again() -> None:
    class Runaway(Remote):
        def cancel(self, ticket: int) -> None:
            raise TimeoutError("no answer")

    remote = Runaway()
    sim = simulate(remote)
    it = sim.submit(text(20), max_tokens=4, tenant="remote")
    sim.step()
    lost = set(remote.began[0].blocks)
    sim.abort(it)
    assert it.finish_reason == "abort"
    assert sim.free_blocks == 40 - len(lost)
    others = [sim.submit(text(20, 1 + at), max_tokens=4) for at in range(9)]
    used: set[int] = set()
    while sim.stats.tracked_requests:
        used |= {block for state in sim.step().entered for table in state.tables for block in table}
    assert not used & lost
    assert as_alone(sim, *others)


def test_a_failure_on_a_request_that_has_ended_touches_none_of_the_same_name() -> None:
    class Runaway(Remote):
        def cancel(self, ticket: int) -> None:
            raise TimeoutError("no answer")

    sim = simulate(Runaway())
    first = sim.submit(text(20), max_tokens=4, tenant="remote", request_id="same")
    sim.step()
    sim.abort(first)
    again = sim.submit(text(9, 1), max_tokens=4, request_id="same")
    sim.run()
    assert again.finish_reason == "length"
    assert as_alone(sim, again)


@pytest.mark.parametrize("answer", [RuntimeError("?"), None, 1])
def test_a_connector_that_cannot_say_whether_it_reads_keeps_nothing(answer: Any) -> None:
    class Unsure(Remote):
        def keeps(self, request: RequestView, ticket: int) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    sim = simulate(Unsure(0))
    it = sim.submit(text(8), max_tokens=2)
    sim.run()
    assert as_alone(sim, it)
    assert sim.free_blocks == 40
    sim.step()
    assert sim.scheduler.stats.num_policy_faults == 1


# --- patience ---------------------------------------------------------------------------------------------------------


def test_a_connector_that_never_answers_is_waited_for_so_long_and_no_longer() -> None:
    """Two began at 0 s and 3 s; with 5 s of patience they are given up at 5 s and 8 s, each once."""
    remote = Remote()
    sim = simulate(remote, load_timeout=5.0)
    first = sim.submit(text(20), max_tokens=4, tenant="remote")
    sim.step()
    sim.tick(3.0)
    second = sim.submit(text(20, 1), max_tokens=4, tenant="remote")
    sim.step()
    sim.tick(1.9)
    assert sim.step().ids == ()
    sim.tick(0.1)
    assert sim.step().tokens == {first.id: 20}
    assert remote.cancelled == [0]
    assert second.status is Status.WAITING_FOR_REMOTE_KV
    sim.tick(3.0)
    assert sim.step().tokens[second.id] == 20
    assert remote.cancelled == [0, 1]
    sim.run()
    assert len(remote.began) == 2, "who was given up is not sent anything again"
    assert as_alone(sim, first, second)


def test_what_lands_in_time_starts_no_clock_for_others() -> None:
    remote = Remote()
    sim = simulate(remote, load_timeout=5.0)
    first = sim.submit(text(20), max_tokens=2, tenant="remote")
    sim.step()
    deliver(sim, remote, 16)
    sim.step()
    sim.tick(4.0)
    second = sim.submit(text(20, 1), max_tokens=2, tenant="remote")
    sim.step()
    sim.tick(4.0)
    assert sim.step().ids == ()
    assert second.status is Status.WAITING_FOR_REMOTE_KV
    deliver(sim, remote, 16)
    sim.run()
    assert remote.cancelled == []
    assert as_alone(sim, first, second)


def test_patience_with_a_connector_that_cannot_be_called_off_ends_the_request() -> None:
    class Runaway(Remote):
        def cancel(self, ticket: int) -> None:
            raise TimeoutError("no answer")

    sim = simulate(Runaway(), load_timeout=5.0)
    it = sim.submit(text(20), max_tokens=2, tenant="remote")
    sim.step()
    sim.tick(5.0)
    sim.step()
    assert it.error == "scheduling plugin 'far' failed in cancel: TimeoutError: no answer"
    assert sim.free_blocks == 36


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_patience_is_above_zero(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"load_timeout=.* must be above 0 seconds; leave it out to wait for ever"):
        Simulation(40, 4, load_timeout=seconds)


@pytest.mark.parametrize("landed", [True, False])
def test_all_start_over_when_everything_is_preempted_those_too_that_wait_for_a_connector(landed: bool) -> None:
    """After new weights nothing that was computed, here or elsewhere, may be used."""
    remote = Remote()
    sim = simulate(remote)
    it = sim.submit(text(20), max_tokens=2, tenant="remote")
    sim.step()
    assert it.status is Status.WAITING_FOR_REMOTE_KV
    if landed:
        sim.throttle(True)
        deliver(sim, remote, 16)
        sim.step()
        assert it.status is Status.LOADED
        sim.throttle(False)
    remote.num_tokens = 0
    sim.reset_prefix_cache(preempt=True)
    assert it.status is Status.PREEMPTED
    assert it.num_computed_tokens == 0
    assert remote.cancelled == ([] if landed else [0])
    assert sim.step().tokens[it.id] == 20
    sim.run()
    assert as_alone(sim, it)
