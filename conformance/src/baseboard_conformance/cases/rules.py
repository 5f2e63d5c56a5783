"""How a plugin behaves as a guest: light, quiet, polite."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast, get_args

import numpy as np

from baseboard.contract import BackendUnavailable, Capabilities, DType, Feature, KVDType
from baseboard.discovery import open_backend
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.imports import private_imports
from baseboard_conformance.inspecting import source_of
from baseboard_conformance.outcome import CheckFailedError
from baseboard_conformance.pools import plain_attention, plain_spec

_PATIENCE: Final = 90  # seconds for a process that imports the whole core


def _ask(bench: Bench, question: str) -> dict[str, Any]:
    """Ask :mod:`baseboard_conformance.inspecting` in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="baseboard-") as folder:
        answer = Path(folder, "answer.json")
        command = [sys.executable, "-m", "baseboard_conformance.inspecting", question, bench.name, str(answer)]
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False, cwd=folder)
        if done.returncode or not answer.exists():
            tail = done.stderr.decode(errors="replace")[-1500:]
            raise CheckFailedError(f"a fresh process that asks for {question} ended with {done.returncode}:\n{tail}")
        return json.loads(answer.read_text(encoding="utf-8"))


def _light_import(bench: Bench) -> dict[str, float]:
    answer = _ask(bench, "light_import")
    heavy = ", ".join(answer["heavy"])
    require(not heavy, f"importing the entry point's module loads {heavy}; load it in open_backend")
    return {"import_seconds": answer["seconds"]}


def _probe(bench: Bench) -> None:
    answer = _ask(bench, "plain_probe")
    require("raised" not in answer, f"probe_devices raised {answer.get('raised')}; it must never raise")
    require(not answer["problems"], f"probe_devices: {'; '.join(answer['problems'])}")
    require(not answer["loaded"], f"probe_devices loads {', '.join(answer['loaded'])}; it must be cheap")


def _probe_crippled(bench: Bench) -> None:
    """Every accelerator library is there, and broken."""
    answer = _ask(bench, "crippled_probe")
    require("raised" not in answer, f"with a broken driver library probe_devices raised {answer.get('raised')}")
    require(not answer["problems"], f"with a broken driver library probe_devices: {'; '.join(answer['problems'])}")
    require(not answer["tried"], f"probe_devices tried to import {', '.join(answer['tried'])}")


def _private_imports(bench: Bench) -> None:
    found = private_imports(source_of(bench.name).value)
    require(not found, f"a plugin imports baseboard.contract and baseboard.kit only: {'; '.join(found[:8])}")


def _core_unchanged(bench: Bench) -> None:
    changed = _ask(bench, "core_changes")["changed"]
    require(not changed, f"opening the backend replaced attributes of the core: {', '.join(changed)}")


def _capabilities(bench: Bench) -> None:
    answer = cast("object", bench.hook.capabilities())  # a plugin may give anything
    require(isinstance(answer, Capabilities), f"capabilities() gave a {type(answer).__name__}")
    can = bench.can
    require(answer == can, "capabilities() changes while the backend is open")
    known: dict[str, tuple[Iterable[str], tuple[str, ...]]] = {
        "dtypes": (can.dtypes, get_args(DType)),
        "kv_dtypes": (can.kv_dtypes, get_args(KVDType)),
        "features": (tuple(can.features), get_args(Feature)),
    }
    for name, (values, allowed) in known.items():
        odd = sorted(str(value) for value in values if value not in allowed)
        require(not odd, f"Capabilities.{name} has {', '.join(odd)}; the contract knows {', '.join(allowed)}")
    for name in ("dtypes", "kv_dtypes", "block_sizes"):
        values = getattr(can, name)
        require(len(values) > 0, f"Capabilities.{name} is empty: nothing can run")
        require(len(set(values)) == len(values), f"Capabilities.{name} names something twice: {values}")
    require("auto" in can.kv_dtypes, "Capabilities.kv_dtypes lacks auto: keys and values in the model's own dtype")
    require(all(size > 0 for size in can.block_sizes), f"Capabilities.block_sizes: {can.block_sizes}")
    require(can.head_size_multiple > 0 and can.max_head_size > 0, "head sizes must be positive")
    require(
        can.head_sizes is None or max(can.head_sizes) <= can.max_head_size,
        "a declared head size is above max_head_size",
    )
    for name in ("max_gqa_ratio", "max_seqs"):
        limit = getattr(can, name)
        require(limit is None or limit > 0, f"Capabilities.{name} is {limit}")


def _unknown_option(bench: Bench) -> None:
    try:
        opened = open_backend(bench.name, {"an_option_that_nobody_has": 1})
    except BackendUnavailable as error:
        require("an_option_that_nobody_has" in str(error), f"an unknown option is refused without its name: {error}")
        return
    opened.close()
    raise CheckFailedError(
        "open_backend accepted an option that it does not know; right is BackendUnavailable naming it"
    )


def _close_twice(bench: Bench) -> None:
    """Closing one of two backends, twice, leaves the other alone."""
    other = open_backend(bench.name)
    cache = other.hook.allocate_kv_cache(spec=plain_spec(bench), num_blocks=2)
    other.hook.zero_blocks(cache=cache, blocks=np.array([1], np.int64))
    other.hook.synchronize()
    other.hook.close()
    other.hook.close()
    kept = bench.hook.allocate_kv_cache(spec=plain_spec(bench), num_blocks=2)
    bench.hook.zero_blocks(cache=kept, blocks=np.array([1], np.int64))
    bench.hook.synchronize()


def _kernels(bench: Bench) -> None:
    """Kernels are made per layer and know nothing of each other."""
    made = [bench.hook.attention_kernel(attention=plain_attention(bench), kv=plain_spec(bench)) for _ in range(3)]
    for kernel in made:
        require(callable(getattr(kernel, "write", None)), "a kernel has no write")
        require(callable(getattr(kernel, "attend", None)), "a kernel has no attend")


_PROMISES: Final = {
    "rules/light_import": Promise("the entry point's module loads no accelerator library", _light_import),
    "rules/probe": Promise("probe_devices is cheap, never raises, and gives reasons", _probe),
    "rules/probe_crippled": Promise("probe_devices works where the driver does not", _probe_crippled),
    "rules/private_imports": Promise(
        "a plugin imports baseboard.contract and baseboard.kit, nothing else", _private_imports
    ),
    "rules/core_unchanged": Promise("a plugin changes nothing of the core", _core_unchanged),
    "rules/capabilities": Promise("capabilities are constant and in the contract's words", _capabilities),
    "rules/unknown_option": Promise("an option that a plugin does not know it refuses", _unknown_option),
    "rules/close_twice": Promise("calling close twice is harmless, also for another open backend", _close_twice),
    "rules/kernels": Promise("attention_kernel makes a kernel for every layer", _kernels),
}


def cases() -> Iterator[Case]:
    yield from promised("the contract's text; a process of its own where imports are looked at", _PROMISES)
