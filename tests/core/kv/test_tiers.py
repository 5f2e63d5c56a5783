"""Blocks on their way between device and host: the counters of both are the lengths of their lists, always."""

from __future__ import annotations

from array import array
from collections import Counter
from random import Random

import pytest

from baseboard.kv.group import PoolShape
from baseboard.kv.manager import KVCacheManager
from baseboard.kv.prefix import PrefixIndex


class Tiers:
    """B=4, N=4, H=4, and the sequences that live there."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.kv = KVCacheManager(PoolShape(4, 4), 4, PrefixIndex())
        self.here: dict[str, int] = {}  # tokens of each
        self.away: dict[str, int] = {}
        self.met: Counter[str] = Counter()

    def pick(self, among: dict[str, int]) -> str:
        return self.rng.choice(sorted(among))

    def new(self) -> None:
        kv, name = self.kv, f"s{self.met['new']}"
        self.met["new"] += 1
        tokens = array("i", [self.rng.randint(0, 1)] * 16)
        kv.open(name)
        hit = kv.match(name, tokens[:9])
        if not kv.fits(hit, 9, 0):
            kv.close(name)
            return
        kv.admit(name, hit)
        assert kv.extend(name, hit.num_tokens, 9 - hit.num_tokens) is not None
        kv.settle(name, tokens, 9)
        self.here[name] = 9
        self.met["hit"] += hit.num_tokens > 0

    def grow(self) -> None:
        if self.here:
            name = self.pick(self.here)
            self.here[name] += self.kv.extend(name, self.here[name], 1) is not None

    def swap_out(self) -> None:
        if self.here and self.kv.swap_out(name := self.pick(self.here)) is not None:
            self.away[name] = self.here.pop(name)
            self.met["out"] += 1

    def swap_in(self) -> None:
        if self.away and self.kv.swap_in(name := self.pick(self.away), self.away[name]) is not None:
            self.here[name] = self.away.pop(name)
            self.met["in"] += 1

    def free(self) -> None:
        for among in (self.here, self.away):
            if among and self.rng.random() < 0.5:
                name = self.pick(among)
                self.kv.close(name)
                del among[name]

    def reset(self) -> None:
        self.kv.reset_index()

    def check(self) -> None:
        kv = self.kv
        kv.check()
        held = {block for name in self.here for block in kv.held(name)}
        assert kv.pool.num_free == len(kv.pool.free_list) == 4 - len(held)
        swapped = sum(-(-tokens // 4) for tokens in self.away.values())
        assert kv.host.num_free == len(kv.host.free_list) == 4 - swapped


ACTIONS = ("new", "grow", "swap_out", "swap_in") * 2 + ("free", "reset")


@pytest.mark.parametrize("seed", range(5))
def test_counters_of_both_tiers_never_drift(seed: int) -> None:
    """Scenario 54: 300 random operations: allocate, swap out, swap in, free, drop the index."""
    tiers = Tiers(seed)
    for _ in range(300):
        getattr(tiers, tiers.rng.choice(ACTIONS))()
        tiers.check()
    assert min(tiers.met[name] for name in ("new", "hit", "out", "in")) > 0
    while tiers.here or tiers.away:
        tiers.free()
    assert (tiers.kv.pool.num_free, tiers.kv.host.num_free) == (4, 4)
