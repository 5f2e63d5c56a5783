"""A scheduler with roles of the test's own, on the simulated device: what ``Simulation`` does not let one choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from baseboard.contract.plan import StepPlan, StepResult
from baseboard.contract.sampling import SamplingParams
from baseboard.kv.group import PoolShape
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import PrefixIndex
from baseboard.request.request import Caller, Request, RequestSpec
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.planner import Roles
from baseboard.scheduler.preemption import Recompute
from baseboard.scheduler.ranks import FirstComeFirstServed
from baseboard.scheduler.scheduler import Scheduler
from baseboard.testing.device import Facts, Nastiness, SimulatedDevice
from baseboard.testing.memory import SimulatedMemory

PLAIN = Roles(rank=FirstComeFirstServed(), preemption=Recompute())


class Bench:
    """One step is one plan; its result is taken in at once unless ``plan`` and ``land`` are called apart."""

    def __init__(
        self, roles: Roles = PLAIN, num_blocks: int = 16, block_size: int = 4, host: int = 0, **config: int
    ) -> None:
        numbers = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 256, **config}
        limits = SchedulerConfig(**numbers, pool_tokens=num_blocks * block_size)
        self.scheduler = Scheduler(
            limits, KVCacheManager(PoolShape(num_blocks, block_size), host, PrefixIndex()), roles
        )
        self.device = SimulatedDevice(SimulatedMemory(num_blocks, host, block_size), Nastiness())
        self._arrivals = 0

    def add(
        self, name: str, prompt: Sequence[int], max_tokens: int = 8, priority: int = 0, client: int = 0, **params
    ) -> Request:
        sampling = SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, **params})
        total = self.scheduler.config.max_total(len(prompt), max_tokens)
        spec = RequestSpec(
            name, tuple(prompt), sampling, total, frozenset(), priority, self._arrivals, caller=Caller(client)
        )
        self._arrivals += 1
        self.device.facts[name] = Facts()
        return self.scheduler.add(spec)

    def plan(self) -> tuple[StepPlan, StepResult]:
        plan = self.scheduler.schedule()
        return plan, self.device.submit(plan).result()

    def step(self, failed: Mapping[int, str] | None = None) -> StepPlan:
        plan, result = self.plan()
        self.scheduler.commit(replace(result, failed=failed or {}))
        self.scheduler.check()
        return plan
