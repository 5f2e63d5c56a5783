"""What scheduling costs: microseconds per running request and step (schedule and commit), and to add a request.

    python benchmarks/scheduler.py [--requests N] [--steps K] [--json] [--peer-python PATH]

N requests decode side by side, prefix caching on; the device answers at once, so all that is timed is the scheduler.
With an interpreter that has vllm (see ``scheduler_vllm.py``) its scheduler does the same in turns with ours: a round of
steps each, and the ratio is that of the medians over the rounds. Also: the time to look up a prefix of 32,768 tokens,
and the memory that a running request of 4,096 tokens takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import time
import tracemalloc
from itertools import chain
from pathlib import Path
from typing import Any

from baseboard.contract import SamplingParams, StepPlan, StepResult
from baseboard.kv.group import PoolShape
from baseboard.kv.prefix import PrefixIndex
from baseboard.request.request import RequestSpec
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.policy import Policy, make_kv, make_roles
from baseboard.scheduler.preemption import Costs
from baseboard.scheduler.scheduler import Scheduler

PROMPT = 128
BLOCK = 16


class NoCosts:
    def costs(self) -> Costs:
        return Costs(seconds_per_token=1e-4, seconds_per_block=1e-4)


def make_scheduler(requests: int, steps: int) -> Scheduler:
    blocks = requests * (-(-(PROMPT + steps + 40) // BLOCK))
    config = SchedulerConfig(
        max_num_batched_tokens=1 << 20, max_num_seqs=requests, max_model_len=1 << 16, pool_tokens=blocks * BLOCK
    )
    return Scheduler(
        config, make_kv(PoolShape(blocks, BLOCK), 0, PrefixIndex()), make_roles(Policy(), config, NoCosts())
    )


def spec(number: int, steps: int) -> RequestSpec:
    prompt = tuple((number * 131 + at) % 50_000 for at in range(PROMPT))
    params = SamplingParams(temperature=0, max_tokens=steps + 32)
    return RequestSpec(f"r{number}", prompt, params, PROMPT + steps + 32, frozenset({2}), arrival=number)


def answer(plan: StepPlan) -> StepResult:
    token = 7 + plan.step
    return StepResult(plan.step, tuple([(token,) if count else () for count in plan.samples]))


class Ours:
    """As many requests as asked for, their prompts computed."""

    def __init__(self, requests: int, steps: int) -> None:
        self._requests = requests
        self.scheduler = make_scheduler(requests, steps)
        specs = [spec(number, steps) for number in range(requests)]
        began = time.perf_counter()
        for each in specs:
            self.scheduler.add(each)
        self.add_seconds = (time.perf_counter() - began) / requests
        self.scheduler.commit(answer(self.scheduler.schedule()))

    def step(self) -> float:
        began = time.perf_counter()
        plan = self.scheduler.schedule()
        planned = time.perf_counter() - began
        result = answer(plan)
        began = time.perf_counter()
        self.scheduler.commit(result)
        return planned + time.perf_counter() - began


class Peer:
    """vLLM's scheduler in its own interpreter: told how many requests, then how many steps, over a pipe."""

    def __init__(self, python: str, requests: int) -> None:
        command = [python, str(Path(__file__).with_name("scheduler_vllm.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.add_seconds: float = self._ask(requests)

    def steps(self, number: int) -> list[float]:
        return self._ask(number)

    def _ask(self, message: int) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


#: Steps that one contestant makes before it is the other's turn: with blocks of 16 tokens each meets a new block twice.
ROUND = 32


def run(requests: int, steps: int, peer_python: str | None = None) -> dict[str, float]:
    rounds = max(steps // ROUND, 1)
    ours = Ours(requests, rounds * ROUND)
    peer = Peer(peer_python, requests) if peer_python else None
    mine: list[list[float]] = []
    theirs: list[list[float]] = []
    for _ in range(rounds):
        mine.append([ours.step() for _ in range(ROUND)])
        if peer is not None:
            theirs.append(peer.steps(ROUND))
    per_request = 1e6 / requests
    figures = {
        "us_per_request_step": statistics.median(map(statistics.mean, mine)) * per_request,
        "us_per_request_step_without_new_block": statistics.median(chain(*mine)) * per_request,
        "us_add_request": ours.add_seconds * 1e6,
    }
    if peer is not None:
        figures |= {
            "vllm_us_per_request_step": statistics.median(map(statistics.mean, theirs)) * per_request,
            "vllm_us_add_request": peer.add_seconds * 1e6,
        }
        figures["times_faster_step"] = figures["vllm_us_per_request_step"] / figures["us_per_request_step"]
        figures["times_faster_add"] = figures["vllm_us_add_request"] / figures["us_add_request"]
    return figures


def look_up(num_tokens: int = 32_768) -> float:
    """Milliseconds to find a prompt of which all but the last block is cached; its keys are known already."""
    kv = make_kv(PoolShape(num_tokens // BLOCK + 1, BLOCK), 0, PrefixIndex())
    tokens = [(at * 7919) % 50_000 for at in range(num_tokens)]
    kv.open("first")
    assert kv.extend("first", 0, num_tokens) is not None
    kv.settle("first", tokens, num_tokens)
    kv.open("second")
    times: list[float] = []
    for _ in range(20):
        began = time.perf_counter()
        hit = kv.match("second", tokens)
        times.append(time.perf_counter() - began)
        assert hit.num_tokens == num_tokens - BLOCK
    return statistics.median(times) * 1e3


def memory_of_a_request(num_tokens: int = 4096) -> float:
    """Kilobytes that the scheduler keeps for a running request of so many tokens, no two alike."""
    requests = 32
    scheduler = make_scheduler(requests, num_tokens)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(requests):
        prompt = tuple([(number * 131 + at * 7919) % 50_000 for at in range(num_tokens)])
        params = SamplingParams(temperature=0, max_tokens=8)
        scheduler.add(RequestSpec(f"r{number}", prompt, params, num_tokens + 8, frozenset({2}), arrival=number))
    for _ in range(2):
        scheduler.commit(answer(scheduler.schedule()))
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken / requests / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=192)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer-python", help="interpreter with vllm")
    arguments = parser.parse_args()
    figures = {
        "requests": arguments.requests,
        "steps": arguments.steps,
        **run(arguments.requests, arguments.steps, arguments.peer_python),
        "ms_look_up_32768_tokens": look_up(),
        "kb_per_request_of_4096_tokens": memory_of_a_request(),
    }
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:40} {value:.3f}" if isinstance(value, float) else f"{name:40} {value}")


if __name__ == "__main__":
    main()
