"""The example of the docs is the real thing: a distribution of its own that is installed, found, and fair."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from baseboard.testing import Handle, Simulation
from core.discovery.hosts import Host, install
from core.scheduling.plugins import registry
from core.simulation.texts import as_alone, text

EXAMPLE = Path(__file__).parent / "fair_share"
MODULE = EXAMPLE / "src" / "baseboard_fair_share.py"
DOCUMENT = Path(__file__).parents[3] / "docs" / "scheduling.md"


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE / "src")
        yield import_module("baseboard_fair_share")
        del sys.modules["baseboard_fair_share"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    install(EXAMPLE, tmp_path)
    return Host(tmp_path)


def test_it_takes_under_30_lines() -> None:
    assert len(MODULE.read_text().splitlines()) < 30


@pytest.mark.parametrize(("name", "language"), [("src/baseboard_fair_share.py", "python"), ("pyproject.toml", "toml")])
def test_the_docs_show_what_is_tested(name: str, language: str) -> None:
    shown = re.search(
        rf"^`{re.escape(name)}`:\n\n```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown is not None
    assert shown[1] == (EXAMPLE / name).read_text()


def test_once_installed_it_is_found_by_name(host: Host) -> None:
    ran = host.python(
        """
from baseboard.testing import Simulation
sim = Simulation(64, 4, policy="fair_share", max_num_seqs=1)
flood = [sim.submit([at, 1, 2], max_tokens=2, tenant="flood") for at in range(5)]
quiet = sim.submit([9, 9, 9], max_tokens=2, tenant="quiet")
order = []
while sim.stats.tracked_requests:
    order += [name for name in sim.step().ids if name not in order]
print(order.index(quiet.id))
"""
    )
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr


def test_the_command_lists_it(host: Host) -> None:
    ran = host.cli("policies", "--json")
    assert ran.returncode == 0, ran.stderr
    (plugin,) = [each for each in json.loads(ran.stdout)["plugins"] if each["name"] == "fair_share"]
    assert (plugin["offers"], plugin["scheduling_version"], plugin["reason"]) == (["policy"], "1.0", None)
    ran = host.cli("policies")
    assert re.search(r"fair_share +policy +baseboard-fair-share 0.1.0", ran.stdout)


def test_the_command_simulate_takes_it(host: Host, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": at, "input_length": 5, "output_length": 3, "hash_ids": [at]} for at in range(3)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = host.cli("simulate", str(trace), "--blocks", "20", "--policy", "fair_share", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["counters"]["num_requests"] == 3
    ran = host.cli("simulate", str(trace), "--blocks", "20", "--policy", "unfair")
    assert ran.returncode == 1
    assert "policy='unfair' is unknown; known are aging, fair_share, fcfs, prefill_first, priority" in ran.stderr


# --- fairness -------------------------------------------------------------------------------------------------------

FLOOD, QUIET = (8, 4), (20, 4)  # prompt and outputs of each tenant's requests


def admissions(sim: Simulation, handles: list[Handle]) -> list[Handle]:
    """Everybody, in the order in which they are let in."""
    by_id, order = {handle.id: handle for handle in handles}, list[Handle]()
    while sim.stats.tracked_requests:
        order += [by_id[name] for name in sim.step().ids if by_id[name] not in order]
    return order


def submit(sim: Simulation, tenant: str, count: int, first: int, sizes: tuple[int, int]) -> list[Handle]:
    return [sim.submit(text(sizes[0], first + at), max_tokens=sizes[1], tenant=tenant) for at in range(count)]


def largest_gap(order: list[Handle]) -> int:
    """How far apart the two tenants' tokens ever are while both have somebody in line."""
    left = {tenant: sum(h.request.spec.tenant == tenant for h in order) for tenant in ("flood", "quiet")}
    had = dict.fromkeys(left, 0)
    gap = 0
    for handle in order:
        if not all(left.values()):
            break
        spec = handle.request.spec
        assert spec.tenant is not None
        left[spec.tenant] -= 1
        had[spec.tenant] += spec.max_total
        gap = max(gap, abs(had["flood"] - had["quiet"]))
    return gap


@pytest.mark.parametrize("places", [1, 4])
def test_a_tenant_that_floods_and_one_that_does_not_get_the_same(plugin: ModuleType, places: int) -> None:
    """The theorem of start-time fair queueing: while both are in line, the tokens that two flows have been given are
    never further apart than one request of each, 12 + 24 = 36. First come first served breaks it.
    """
    gaps = {}
    for policy in ("fair_share", "fcfs"):
        sim = Simulation(400, 4, policy=policy, max_num_seqs=places, registry=registry(fair_share=plugin))
        flood, quiet = submit(sim, "flood", 40, 0, FLOOD), submit(sim, "quiet", 10, 40, QUIET)
        gaps[policy] = largest_gap(admissions(sim, [*flood, *quiet]))
        assert as_alone(sim, *flood[:3], *quiet[:3])
    assert gaps["fair_share"] <= 12 + 24
    assert gaps["fcfs"] > 12 + 24


def test_the_order_is_that_of_the_starts(plugin: ModuleType) -> None:
    """By hand: starts of 12-token requests are 0 12 24 36 48, of 24-token ones 0 24 48; the flood arrived first."""
    sim = Simulation(400, 4, policy="fair_share", max_num_seqs=1, registry=registry(fair_share=plugin))
    f, q = submit(sim, "flood", 5, 0, FLOOD), submit(sim, "quiet", 3, 5, QUIET)
    order = admissions(sim, [*f, *q])
    assert order == [f[0], q[0], f[1], f[2], q[1], f[3], f[4], q[2]]


def test_who_comes_late_and_asks_for_little_does_not_wait_behind_the_flood(plugin: ModuleType) -> None:
    """A tenant that comes when virtual time is v starts at v: only who is due at v already is before it: one."""
    sim = Simulation(400, 4, policy="fair_share", max_num_seqs=1, registry=registry(fair_share=plugin))
    flood = submit(sim, "flood", 40, 0, FLOOD)
    while not flood[7].finish_reason:
        sim.step()
    (late,) = submit(sim, "quiet", 1, 40, QUIET)
    order = admissions(sim, [*flood[8:], late])
    assert order.index(late) <= 1
    assert as_alone(sim, late)


def test_who_was_away_has_saved_up_nothing(plugin: ModuleType) -> None:
    """Virtual time goes on without a tenant: when it comes back it shares alike again, and does not catch up."""
    sim = Simulation(400, 4, policy="fair_share", max_num_seqs=1, registry=registry(fair_share=plugin))
    flood = submit(sim, "flood", 30, 0, FLOOD)
    while not flood[19].finish_reason:
        sim.step()
    back = submit(sim, "quiet", 10, 30, FLOOD)
    order = admissions(sim, [*flood[20:], *back])
    turns = [handle.request.spec.tenant for handle in order]
    assert sum(a == b for a, b in pairwise(turns)) <= 1, turns
