"""``swap_blocks`` and its transfers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import Transfer
from baseboard_conformance.attending import compute, prepare
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.judging import Story, check_result
from baseboard_conformance.pools import Pool, check_refuses, device_pool, host_pool, move, pairs_of
from baseboard_conformance.problem import make_problem
from baseboard_conformance.scenario import Scenario, geometry


def _swap(bench: Bench, source: Pool, destination: Pool, pairs: NDArray[np.int64]) -> Transfer:
    """Start the transfer, and expect what it must do."""
    transfer = bench.hook.swap_blocks(source=source.cache, destination=destination.cache, pairs=pairs)
    move(source, destination, pairs)
    return transfer


def _finish(transfer: Transfer) -> None:
    transfer.wait()
    require(transfer.done(), "done() is False after wait()")


def _round_trip(bench: Bench) -> None:
    """Out, wiped, and back to other places: bit by bit in every layer."""
    device = device_pool(bench, 8, bench.rng)
    host = host_pool(bench, device, 5, bench.rng)
    out = pairs_of((7, 0), (2, 4), (3, 1))
    given = out.copy()
    _finish(_swap(bench, device, host, out))
    host.check(bench, "swap out of 7->0, 2->4, 3->1")
    bench.hook.zero_blocks(cache=device.cache, blocks=np.array([2, 3, 7], np.int64))
    for plane in device.expected:
        plane[[2, 3, 7]] = 0
    host.check(bench, "after the sources were wiped")
    _finish(_swap(bench, host, device, pairs_of((0, 1), (1, 5), (4, 7))))
    device.check(bench, "swap in of 0->1, 1->5, 4->7")
    require(np.array_equal(out, given), "swap_blocks changed the array of pairs")


def _first_in_first_out(bench: Bench) -> None:
    """Transfers that read what earlier ones wrote, none waited for until the last."""
    device = device_pool(bench, 8, bench.rng)
    host = host_pool(bench, device, 4, bench.rng)
    _swap(bench, device, host, pairs_of((1, 0), (2, 1)))
    _swap(bench, device, host, pairs_of((3, 0)))
    _swap(bench, host, device, pairs_of((0, 5), (1, 6)))
    last = _swap(bench, device, host, pairs_of((5, 2)))
    _finish(last)
    device.check(bench, "1->h0 and 2->h1, 3->h0, h0->5 and h1->6, 5->h2 in this order")
    host.check(bench, "1->h0 and 2->h1, 3->h0, h0->5 and h1->6, 5->h2 in this order")


def _source_reuse(bench: Bench) -> None:
    """Sources rewritten as soon as the transfer says that it is done."""
    device = device_pool(bench, 6, bench.rng)
    host = host_pool(bench, device, 4, bench.rng)
    transfer = _swap(bench, device, host, pairs_of((1, 0), (4, 2)))
    transfer.wait()
    for plane in device.cache.planes:
        plane[[1, 4]] = 0xA5
    for plane in device.expected:
        plane[[1, 4]] = 0xA5
    host.check(bench, "swap out whose sources were rewritten after wait()")
    device.check(bench, "rewriting the sources")


def _waits_on_stream(bench: Bench) -> None:
    """Swap in, ``wait_on_stream``, and a copy that reads what arrived: no wait of the host between."""
    device = device_pool(bench, 8, bench.rng)
    host = host_pool(bench, device, 4, bench.rng)
    transfer = _swap(bench, host, device, pairs_of((3, 1), (0, 2)))
    transfer.wait_on_stream()
    pairs = pairs_of((1, 5), (2, 6))
    bench.hook.copy_blocks(cache=device.cache, pairs=pairs)
    move(device, device, pairs)
    device.check(bench, "swap in, wait_on_stream, and a copy of what arrived")


def _reads_computed(bench: Bench) -> None:
    """A transfer to the host sees what was enqueued before it; what comes back computes the same."""
    scenario = Scenario(bench.can.dtypes[0], "chunked")
    problem = make_problem(geometry(scenario, bench.can), "gauss", bench.seed)
    step = prepare(bench, problem)
    first = compute(bench, step)
    host = bench.hook.allocate_host_kv_cache(like=step.cache, num_blocks=problem.geometry.num_blocks)
    blocks = np.unique(np.concatenate(problem.tables)).astype(np.int64)
    pairs = np.stack([blocks, bench.rng.permutation(problem.geometry.num_blocks)[: len(blocks)]], axis=1).astype(
        np.int64
    )
    bench.hook.copy_blocks(cache=step.cache, pairs=pairs_of((int(blocks[0]), 0)))
    bench.hook.swap_blocks(source=step.cache, destination=host, pairs=pairs).wait()
    bench.hook.zero_blocks(cache=step.cache, blocks=blocks)
    back = np.ascontiguousarray(pairs[:, ::-1])
    bench.hook.swap_blocks(source=host, destination=step.cache, pairs=back).wait_on_stream()
    again = compute(bench, step)
    check_result(bench, problem, again, Story("keys and values that were swapped out, wiped and swapped in"))
    require(np.array_equal(first, again), "attention over swapped blocks has other bits than before the swap")


def _nothing(bench: Bench) -> None:
    device = device_pool(bench, 4, bench.rng)
    host = host_pool(bench, device, 4, bench.rng)
    transfer = bench.hook.swap_blocks(source=device.cache, destination=host.cache, pairs=np.zeros((0, 2), np.int64))
    require(transfer.done(), "a swap of no pairs must be done at once, and done() is False")
    require(transfer.nbytes == 0, f"a swap of no pairs says nbytes={transfer.nbytes}")
    transfer.wait()
    transfer.wait_on_stream()
    device.check(bench, "swap of no pairs")
    host.check(bench, "swap of no pairs")


def _many(bench: Bench) -> None:
    device = device_pool(bench, 2200, bench.rng)
    host = host_pool(bench, device, 2100, bench.rng)
    pairs = np.stack([bench.rng.permutation(2200)[:2048], bench.rng.permutation(2100)[:2048]], axis=1).astype(np.int64)
    _finish(_swap(bench, device, host, pairs))
    host.check(bench, "swap of 2,048 pairs in random order")
    device.check(bench, "swap of 2,048 pairs in random order")


def _both_ways(bench: Bench) -> None:
    """Transfers in both directions under way together, on blocks that do not meet."""
    device = device_pool(bench, 40, bench.rng)
    host = host_pool(bench, device, 40, bench.rng)
    under_way: list[Transfer] = []
    for i in range(8):
        under_way.append(_swap(bench, device, host, pairs_of((2 * i, i))))
        under_way.append(_swap(bench, host, device, pairs_of((39 - i, 2 * i + 1))))
    for transfer in reversed(under_way):
        _finish(transfer)
    device.check(bench, "eight transfers each way, waited for backwards")
    host.check(bench, "eight transfers each way, waited for backwards")


def _says_bytes(bench: Bench) -> None:
    device = device_pool(bench, 6, bench.rng)
    host = host_pool(bench, device, 6, bench.rng)
    transfer = _swap(bench, device, host, pairs_of((1, 1), (2, 3), (4, 5)))
    transfer.wait()
    right = 3 * bench.hook.kv_block_nbytes(spec=device.cache.spec)
    require(transfer.nbytes == right, f"nbytes is {transfer.nbytes}; three blocks over all layers are {right} bytes")


def _illegal(bench: Bench) -> None:
    device = device_pool(bench, 6, bench.rng)
    host = host_pool(bench, device, 3, bench.rng)
    lists = {
        "a source beyond its pool": pairs_of((1, 0), (6, 1)),
        "a destination beyond its pool": pairs_of((1, 0), (5, 3)),
        "a negative source": pairs_of((1, 0), (-1, 1)),
        "a negative destination": pairs_of((1, 0), (2, -1)),
        "a destination twice": pairs_of((1, 0), (2, 0)),
    }
    for what, pairs in lists.items():
        action = partial(bench.hook.swap_blocks, source=device.cache, destination=host.cache, pairs=pairs)
        check_refuses(f"swap_blocks with {what} ({pairs.tolist()})", action)
        device.check(bench, f"after swap_blocks with {what} was refused")
        host.check(bench, f"after swap_blocks with {what} was refused")


_PROMISES: Final = {
    "swap/round_trip": Promise("moves blocks between device and host bit by bit, all layers", _round_trip),
    "swap/fifo": Promise("transfers of one backend are first in, first out", _first_in_first_out),
    "swap/source_reuse": Promise("once done, its sources may be rewritten", _source_reuse),
    "swap/wait_on_stream": Promise("work enqueued after wait_on_stream sees what arrived", _waits_on_stream),
    "swap/reads_computed": Promise("a device-to-host transfer reads what the compute enqueued so far", _reads_computed),
    "swap/nothing": Promise("no pair at all gives a finished transfer", _nothing),
    "swap/many": Promise("one batched transfer of any number of pairs", _many, Profile.CORE),
    "swap/both_ways": Promise("transfers in both directions may be under way at once", _both_ways),
    "swap/nbytes": Promise("nbytes is what is moved", _says_bytes),
    "swap/illegal": Promise("ValueError as in copy_blocks, before anything is enqueued", _illegal),
}


def cases() -> Iterator[Case]:
    yield from promised("the planes' bytes, moved in NumPy", _PROMISES)
