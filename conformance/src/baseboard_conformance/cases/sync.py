"""No wait for the device while a step is prepared and its kernels are enqueued."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from baseboard_conformance.attending import prepare
from baseboard_conformance.bench import Bench
from baseboard_conformance.case import Case, NotObservable, Profile
from baseboard_conformance.outcome import CheckFailedError
from baseboard_conformance.problem import make_problem
from baseboard_conformance.scenario import Scenario, geometry


@contextmanager
def _no_sync(bench: Bench) -> Generator[None]:
    """Torch raises on every wait for the device, where it can tell."""
    import torch

    device = bench.hook.torch_device()
    module: Any = None if device.type == "cpu" else torch.get_device_module(device)
    if not hasattr(module, "set_sync_debug_mode"):
        raise NotObservable(f"torch has no meter of waits for devices of type {device.type}")
    module.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        raise CheckFailedError(f"the host waited for the device: {error}") from error
    finally:
        module.set_sync_debug_mode("default")


def _step_without_sync(layout: str, bench: Bench) -> dict[str, float]:
    problem = make_problem(geometry(Scenario(bench.can.dtypes[0], layout), bench.can), "gauss", bench.seed)
    step = prepare(bench, problem)
    kernel = bench.hook.attention_kernel(attention=problem.geometry.attention, kv=problem.geometry.kv)
    layer = step.cache.layer(0)
    for _ in range(2):  # the first step may compile or tune
        metadata = bench.hook.build_attention_metadata(batch=step.batch, cache=step.cache)
        kernel.write(step.key.inner, step.value.inner, layer, metadata)
        kernel.attend(step.query.inner, layer, metadata)
    bench.hook.synchronize()
    with _no_sync(bench):
        metadata = bench.hook.build_attention_metadata(batch=step.batch, cache=step.cache)
        kernel.write(step.key.inner, step.value.inner, layer, metadata)
        kernel.attend(step.query.inner, layer, metadata)
    return {}


def cases() -> Iterator[Case]:
    for layout in ("decode", "chunked"):
        yield Case(
            id=f"sync/{layout}",
            title="a step is enqueued without waiting for the device",
            clause="build_attention_metadata makes no device-to-host sync; kernels are enqueued",
            oracle="torch's own meter of waits, where the device has one",
            body=partial(_step_without_sync, layout),
            profile=Profile.SMOKE,
            params={"layout": layout},
        )
