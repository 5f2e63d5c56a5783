"""Threads and processes: each case in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ATTEND = """
import os, sys, torch
import baseboard_cpu_avx512
from core.backends.world import Row, make_world
torch.set_num_threads({torch_threads})
backend = baseboard_cpu_avx512.open_backend(baseboard_cpu_avx512.probe_devices()[0], {{}})
world = make_world([Row(1, 900), Row(1, 70), Row(40, 333)], "bfloat16", (8, 2), 64, 32, num_decodes=2)
result = world.run(backend)
world.check(result)
"""


def run(code: str, torch_threads: int = 2, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ATTEND.format(torch_threads=torch_threads) + code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_kernels_run_on_torchs_own_threads() -> None:
    """No thread appears that torch has not started, and no second OpenMP runtime is loaded."""
    code = """
torch.ones(1 << 20).exp()
before = len(os.listdir("/proc/self/task"))
world.run(backend)
assert len(os.listdir("/proc/self/task")) == before
names = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if "omp" in line.split("/")[-1]}
print(len(names), names)
"""
    assert run(code).startswith("1 ")


def test_without_a_runtime_a_pool_of_our_own_serves() -> None:
    code = """
if len(os.sched_getaffinity(0)) > 1:
    backend._library.bb_use_openmp(None)
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        assert torch.equal(world.run(backend), result)
    assert len(os.listdir("/proc/self/task")) == before + 1
"""
    run(code)


@pytest.mark.parametrize("preparation", ["", "backend._library.bb_use_openmp(None); world.run(backend)"])
def test_a_forked_child_goes_on(preparation) -> None:
    code = f"""
{preparation}
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    os._exit(0 if torch.allclose(world.run(backend).float(), result.float(), atol=1e-2) else 3)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert torch.equal(world.run(backend), result)
"""
    run(code)


def test_more_threads_asked_for_than_there_are() -> None:
    code = """
assert torch.get_num_threads() == 64
assert backend._threads() == len(baseboard_cpu_avx512.read_cpu().cores)
"""
    run(code, torch_threads=64, OMP_NUM_THREADS="64")


def test_workers_are_bound_to_a_core_each_and_the_caller_stays_free() -> None:
    code = """
import contextlib, threading
allowed, cores = os.sched_getaffinity(0), baseboard_cpu_avx512.read_cpu().cores
tied = baseboard_cpu_avx512.open_backend(baseboard_cpu_avx512.probe_devices()[0], {"bind": "cores"})

def bound():
    places = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # ended since it was listed
            places.append(os.sched_getaffinity(int(task)))
    return sorted(min(place) for place in places if len(place) == 1)

def step():
    world.check(world.run(tied))
    assert os.sched_getaffinity(0) == allowed

if len(cores) > 1:
    assert bound() == []
    step()
    assert bound() == [cores[1]]
    stepping = threading.Thread(target=step)  # has workers of its own
    stepping.start()
    stepping.join()
    assert set(bound()) == {cores[1]}
    assert len(cores) == len(baseboard_cpu_avx512.read_cpu().cores)
"""
    run(code)


def test_a_process_bound_to_one_cpu() -> None:
    code = """
first = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {first})
device = baseboard_cpu_avx512.probe_devices()[0]
assert device.details["cores used"] == f"{first} (1 of 1 logical CPUs allowed)"
alone = baseboard_cpu_avx512.open_backend(device, {})
assert alone._threads() == 1
world.check(world.run(alone))
"""
    run(code)
