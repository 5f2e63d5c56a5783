"""What scheduling costs: microseconds per running request and step (schedule and commit), and to add a request.

    python benchmarks/scheduler.py [--requests N] [--steps K] [--json]

N requests decode side by side, prefix caching on; the device answers at once, so all that is timed is the scheduler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from baseboard.contract import SamplingParams, StepPlan, StepResult
from baseboard.kv.group import PoolShape
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
    blocks = requests * (-(-(PROMPT + steps + 8) // BLOCK))
    config = SchedulerConfig(
        max_num_batched_tokens=1 << 20, max_num_seqs=requests, max_model_len=1 << 16, pool_tokens=blocks * BLOCK
    )
    return Scheduler(config, make_kv(PoolShape(blocks, BLOCK), 0, True), make_roles(Policy(), config, NoCosts()))


def spec(number: int, steps: int) -> RequestSpec:
    prompt = tuple((number * 131 + at) % 50_000 for at in range(PROMPT))
    params = SamplingParams(temperature=0, max_tokens=steps + 8)
    return RequestSpec(f"r{number}", prompt, params, PROMPT + steps + 8, frozenset({2}), arrival=number)


def answer(plan: StepPlan) -> StepResult:
    token = 7 + plan.step
    return StepResult(plan.step, tuple([(token,) if count else () for count in plan.samples]))


def run(requests: int, steps: int) -> dict[str, float]:
    scheduler = make_scheduler(requests, steps)
    specs = [spec(number, steps) for number in range(requests)]
    began = time.perf_counter()
    for each in specs:
        scheduler.add(each)
    added = time.perf_counter() - began
    scheduler.commit(answer(scheduler.schedule()))
    per_step: list[float] = []
    for _ in range(steps):
        began = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter() - began
        result = answer(plan)
        began = time.perf_counter()
        scheduler.commit(result)
        per_step.append(planned + time.perf_counter() - began)
    return {
        "us_per_request_step": statistics.mean(per_step) / requests * 1e6,
        "us_per_request_step_median": statistics.median(per_step) / requests * 1e6,
        "us_add_request": added / requests * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = {"requests": arguments.requests, "steps": arguments.steps, **run(arguments.requests, arguments.steps)}
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:.3f}" if isinstance(value, float) else f"{name:28} {value}")


if __name__ == "__main__":
    main()
