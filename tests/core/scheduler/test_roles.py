"""Ranks, limits, gates and preemptions: the small objects that make a policy."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import pytest

from baseboard.contract.sampling import SamplingParams
from baseboard.kv.group import PoolShape
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex
from baseboard.request.request import Request, RequestSpec
from baseboard.request.status import Event, Status
from baseboard.scheduler import planner
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.gates import MaxRunning, StepInputs, StepView, Throttle, Verdict
from baseboard.scheduler.limits import LongPrefill, PromptLogprobsRows, WholePrompts
from baseboard.scheduler.orders import Continuous, Order, PrefillFirst
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.policy import Policy, make_kv, make_roles
from baseboard.scheduler.preemption import Cheaper, Costs, Recompute, Swap
from baseboard.scheduler.ranks import FirstComeFirstServed, Priority
from baseboard.scheduler.scheduler import Scheduler
from core.scheduler.bench import PLAIN, Bench


@dataclass
class View:
    """A step as a gate sees it."""

    num_running: int
    inputs: StepInputs = field(default_factory=StepInputs)
    running: tuple[Request, ...] = ()
    waiting: tuple[Request, ...] = ()


def make_request(num_prompt: int = 8, width: int = 1, **params: int) -> Request:
    spec = RequestSpec("x", tuple(range(num_prompt)), SamplingParams(**params), num_prompt + 16, frozenset())
    request = Request(spec, (0, 0))
    request.width = width
    return request


@dataclass
class RecordedTurn:
    """A step in which blocks are taken from somebody while ``taken_in`` are served."""

    taken_in: str
    served: list[str] = field(default_factory=list[str])
    num_rows: int = 0
    any_swapped: bool = False

    @property
    def preempted(self) -> bool:
        return self.taken_in in self.served

    def serve_running(self) -> None:
        self.served.append("running")

    def serve_swapped(self) -> None:
        self.served.append("swapped")

    def serve_waiting(self) -> None:
        self.served.append("waiting")


@pytest.mark.parametrize(
    ("order", "taken_in", "served"),
    [
        (Continuous(), "nobody", ["running", "swapped", "waiting"]),
        (Continuous(), "running", ["running"]),
        (PrefillFirst(), "nobody", ["waiting", "running", "swapped"]),
        (PrefillFirst(), "running", ["waiting", "running"]),
    ],
)
def test_blocks_just_taken_do_not_go_to_the_next_in_line(order: Order, taken_in: str, served: list[str]) -> None:
    turn = RecordedTurn(taken_in)
    order.serve(turn)
    assert turn.served == served


@pytest.mark.parametrize(("rank", "key"), [(FirstComeFirstServed(), (7, 2)), (Priority(), (5, 7, 2))])
def test_ranks_order_by_arrival_or_by_priority_first(rank, key: tuple[int, ...]) -> None:
    spec = RequestSpec("x", (1,), SamplingParams(), 2, frozenset(), priority=5, arrival=7, sample_index=2)
    assert rank.key(spec) == key


@pytest.mark.parametrize(
    ("limit", "want", "budget", "given"),
    [
        (LongPrefill(10), 25, 64, 10),
        (LongPrefill(10), 10, 64, 10),
        (LongPrefill(10), 3, 2, 3),
        (WholePrompts(32), 20, 20, 20),
        (WholePrompts(32), 20, 19, 0),
        (WholePrompts(32), 32, 31, 0),
        (WholePrompts(32), 33, 31, 33),
        (PromptLogprobsRows(), 600, 1000, 600),
    ],
)
def test_limits_clip(limit, want: int, budget: int, given: int) -> None:
    assert limit.clip(make_request(), want, budget) == given


def test_only_prompts_that_want_their_logprobs_are_cut_small() -> None:
    request = make_request(num_prompt=700, prompt_logprobs=0)
    assert PromptLogprobsRows().clip(request, 600, 1000) == 256
    request.computed = 699
    assert PromptLogprobsRows().clip(request, 600, 1000) == 256
    request.computed = 700
    assert PromptLogprobsRows().clip(request, 600, 1000) == 600


@pytest.mark.parametrize(
    ("running", "width", "verdict"), [(3, 1, "admit"), (4, 1, "close"), (2, 3, "close"), (1, 3, "admit")]
)
def test_a_request_needs_a_place_for_each_sample(running: int, width: int, verdict: str) -> None:
    assert MaxRunning(4).check(make_request(width=width), View(running)) is Verdict(verdict)


# --- custom roles, as a third party would write them ------------------------------------------------------------------


@dataclass
class Hold:
    """Gives a request no more than ``share`` says."""

    share: dict[str, int] = field(default_factory=dict)

    def clip(self, request: Request, want: int, budget: int) -> int:
        return min(want, self.share.get(request.id, want))


def test_every_runner_that_is_not_evicted_or_deferred_gets_its_token() -> None:
    """Scenario 6: A (half prefilled, deferred) is evicted for B; C, behind it in the same step, is not skipped."""
    hold = Hold({"A": 40})
    bench = Bench(Roles(Priority(), Recompute(), limits=(hold,)), num_blocks=7, block_size=8)
    a = bench.add("A", range(48), priority=9)
    assert bench.step().tokens == {"A": 40}
    hold.share["A"] = 0
    bench.add("B", range(50, 58), priority=0)
    bench.add("C", range(60, 66), priority=1)
    assert bench.step().tokens == {"B": 8, "C": 6}
    assert bench.scheduler.kv.pool.num_free == 0
    plan = bench.step()
    assert plan.tokens == {"B": 1, "C": 1}
    assert (a.status, a.computed) == (Status.PREEMPTED, 0)
    assert bench.scheduler.kv.pool.num_free == 4


@dataclass
class Only:
    """Lets in whom it names; what it says to the others is its verdict."""

    names: set[str]
    verdict: Verdict

    def check(self, request: Request, view: StepView) -> Verdict:
        return Verdict.ADMIT if request.id in self.names else self.verdict


@pytest.mark.parametrize(
    ("gates", "admitted"),
    [
        ((Only({"A", "C"}, Verdict.PASS_OVER),), {"A", "C"}),
        ((Only({"A", "C"}, Verdict.CLOSE),), {"A"}),
        ((Only({"A", "C"}, Verdict.PASS_OVER), Only({"A", "B"}, Verdict.CLOSE)), {"A"}),
        ((Only({"A", "C"}, Verdict.PASS_OVER), MaxRunning(1)), {"A"}),
        ((), {"A", "B", "C"}),
    ],
)
def test_a_gate_passes_one_over_or_closes_for_all_behind(gates, admitted: set[str]) -> None:
    bench = Bench(Roles(FirstComeFirstServed(), Recompute(), gates=gates))
    for name in "ABC":
        bench.add(name, range(4))
    assert set(bench.step().tokens) == admitted


def test_limits_are_asked_one_after_the_other() -> None:
    bench = Bench(Roles(FirstComeFirstServed(), Recompute(), limits=(LongPrefill(10), Hold({"A": 7}), LongPrefill(9))))
    bench.add("A", range(20))
    bench.add("B", range(20))
    assert bench.step().tokens == {"A": 7, "B": 9}


class Backwards:
    """A third party's rank: last come, first served."""

    def key(self, spec: RequestSpec) -> tuple[int, ...]:
        return (-spec.arrival, spec.sample_index)


def test_a_third_partys_rank_decides_who_is_served_first() -> None:
    bench = Bench(Roles(Backwards(), Recompute()), max_num_batched_tokens=5)
    for name in "ABC":
        bench.add(name, range(4))
    assert list(bench.step().tokens.items()) == [("C", 4), ("B", 1)]


def test_prompts_that_want_their_logprobs_hit_nothing_until_they_have_output() -> None:
    bench = Bench(num_blocks=32)
    bench.add("first", range(9))
    bench.step()
    asks = bench.add("asks", range(9), prompt_logprobs=1)
    assert bench.step().tokens == {"first": 1, "asks": 9}
    bench.scheduler.preempt(asks, Recompute())
    assert bench.step().tokens == {"first": 1, "asks": 2}, "10 tokens known, two blocks hit"


# --- preemption -------------------------------------------------------------------------------------------------------


def running(kv: KVCacheManager, num_computed: int) -> Request:
    request = make_request(num_prompt=num_computed)
    kv.open("x")
    kv.extend("x", 0, num_computed)
    request.on(Event.ADMIT)
    request.computed, request.resident, request.promised = num_computed, True, 1
    return request


def test_recompute_drops_everything() -> None:
    kv = KVCacheManager(PoolShape(8, 4), 8, NoPrefixIndex())
    request = running(kv, 10)
    assert Recompute().preempt(request, kv) == ()
    assert (request.status, request.computed, request.promised, request.resident) == (Status.PREEMPTED, 0, 0, False)
    assert request.epoch == 1
    assert (kv.pool.num_free, kv.host.num_free) == (8, 8)


def test_swap_keeps_what_is_computed_short_of_the_last_token() -> None:
    kv = KVCacheManager(PoolShape(8, 4), 8, NoPrefixIndex())
    request = running(kv, 10)
    assert len(Swap().preempt(request, kv)) == 3
    assert (request.status, request.computed, request.promised, request.resident) == (Status.SWAPPED, 9, 0, False)
    assert request.epoch == 1
    assert (kv.pool.num_free, kv.host.num_free) == (8, 5)


def test_swap_recomputes_where_the_host_is_full_or_there_is_nothing_to_keep() -> None:
    kv = KVCacheManager(PoolShape(8, 4), 2, NoPrefixIndex())
    request = running(kv, 10)
    assert Swap().preempt(request, kv) == ()
    assert (request.status, kv.host.num_free) == (Status.PREEMPTED, 2)
    kv = KVCacheManager(PoolShape(8, 4), 2, NoPrefixIndex())
    request = running(kv, 4)
    request.computed = 0
    assert Swap().preempt(request, kv) == ()
    assert request.status is Status.PREEMPTED


@dataclass(frozen=True)
class Machine:
    token: float
    block: float

    def costs(self) -> Costs:
        return Costs(self.token, self.block)


@pytest.mark.parametrize(
    ("token", "block", "status"),
    [
        (1.0, 1.0, Status.SWAPPED),  # 3 blocks out and in: 6 against 10
        (1.0, 1.7, Status.PREEMPTED),  # 10.2 against 10
        (0.6, 1.0, Status.PREEMPTED),  # a tie is no gain
        (0.61, 1.0, Status.SWAPPED),
    ],
)
def test_auto_takes_the_cheaper_way(token: float, block: float, status: Status) -> None:
    kv = KVCacheManager(PoolShape(8, 4), 8, NoPrefixIndex())
    request = running(kv, 10)
    Cheaper(Machine(token, block)).preempt(request, kv)
    assert request.status is status


def test_auto_measures_anew_each_time() -> None:
    """Costs that were learnt meanwhile count."""

    @dataclass
    class Learning:
        now: Costs

        def costs(self) -> Costs:
            return self.now

    model = Learning(Costs(1.0, 100.0))
    cheaper = Cheaper(model)
    kv = KVCacheManager(PoolShape(8, 4), 8, NoPrefixIndex())
    request = running(kv, 10)
    model.now = Costs(1.0, 0.1)
    cheaper.preempt(request, kv)
    assert request.status is Status.SWAPPED


# --- from names to roles ----------------------------------------------------------------------------------------------


def roles_of(policy: Policy, **config: object) -> Roles:
    numbers = {"max_num_batched_tokens": 32, "max_num_seqs": 8, "max_model_len": 64, "pool_tokens": 64, **config}
    return make_roles(policy, SchedulerConfig(**numbers), Machine(1, 1))  # pyright: ignore[reportArgumentType]


def test_roles_are_made_from_names_and_numbers() -> None:
    plain = roles_of(Policy())
    assert isinstance(plain.rank, FirstComeFirstServed)
    assert isinstance(plain.preemption, Cheaper)
    assert [type(limit) for limit in plain.limits] == [PromptLogprobsRows]
    assert plain.gates[0] == MaxRunning(8)
    assert [type(gate) for gate in plain.gates] == [MaxRunning, Throttle]
    fancy = roles_of(Policy("priority", "swap", 5), chunked_prefill=False, max_num_active_seqs=3)
    assert isinstance(fancy.rank, Priority)
    assert isinstance(fancy.preemption, Swap)
    assert fancy.limits[1:] == (LongPrefill(5), WholePrompts(32))
    assert fancy.gates[0] == MaxRunning(3)
    assert isinstance(roles_of(Policy(preemption="recompute")).preemption, Recompute)


@pytest.mark.parametrize(
    ("sizes", "host", "complaint"),
    [
        ((4, 0), 0, "block_size=0 must be at least 1"),
        ((0, 4), 0, "num_blocks=0 must be at least 1"),
        ((4, 4), -1, "num_host_blocks=-1 must not be negative"),
    ],
)
def test_a_pool_that_holds_nothing_is_refused(sizes: tuple[int, int], host: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        make_kv(PoolShape(*sizes), host, PrefixIndex())


def test_the_planner_names_no_feature() -> None:
    """House rule 3: roles decide what a step looks like. The module knows them as protocols, and no built-in one."""
    names = set(vars(planner))
    assert {"Rank", "Limit", "Gate", "Preemption"} <= names
    built_in = {"FirstComeFirstServed", "Priority", "LongPrefill", "WholePrompts", "MaxRunning", "Recompute", "Swap"}
    assert not names & built_in
    source = inspect.getsource(planner).lower()
    for feature in ("lora", "adapter", "grammar", "encoder", "draft_tokens", "speculat", "connector"):
        assert feature not in source


def test_a_plain_scheduler_needs_no_limits_and_no_gates() -> None:
    bench = Bench(PLAIN)
    request = bench.add("x", range(6), max_tokens=3)
    while not request.finished:
        bench.step()
    assert isinstance(bench.scheduler, Scheduler)
    assert request.num_outputs == 3
