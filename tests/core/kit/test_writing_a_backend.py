"""The tutorial's plugin is the real thing: its text is in the docs, and it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pluggy
import pytest
import torch

from baseboard.contract import BACKENDS_GROUP, PROJECT, BackendHooks, DiscoveryHooks, Unsupported
from core.backends.world import POISONS, Row, make_world

EXAMPLE = Path(__file__).parent / "example_backend"
TUTORIAL = Path(__file__).parents[3] / "docs/writing-a-backend.md"
FILES = [path.relative_to(EXAMPLE).as_posix() for path in EXAMPLE.rglob("*") if path.suffix in {".py", ".toml"}]


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE / "src")
        yield import_module("baseboard_example")
        for name in [name for name in sys.modules if name.partition(".")[0] == "baseboard_example"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def backend(plugin):
    (device,) = plugin.probe_devices()
    return plugin.open_backend(device, {})


def blocks() -> dict[str, str]:
    """Code blocks of the tutorial that have a file's name."""
    return dict(re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL))


def test_the_tutorial_shows_every_file() -> None:
    assert sorted(blocks()) == sorted(FILES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_tutorial_shows_what_is_tested(name) -> None:
    assert blocks()[name] == (EXAMPLE / name).read_text()


def test_the_entry_point_names_the_module() -> None:
    text = (EXAMPLE / "pyproject.toml").read_text()
    assert f'[project.entry-points."{BACKENDS_GROUP}"]\nexample = "baseboard_example"\n' in text


@pytest.mark.parametrize("hooks", [DiscoveryHooks, BackendHooks])
def test_every_hook_is_there(plugin, backend, hooks) -> None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(plugin if hooks is DiscoveryHooks else backend)
    manager.check_pending()
    names = [name for name in vars(hooks) if hasattr(getattr(hooks, name), f"{PROJECT}_spec")]
    assert [name for name in names if not getattr(manager.hook, name).get_hookimpls()] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("causal", [True, False])
def test_it_computes_attention(backend, dtype, block_size, causal) -> None:
    rows = [Row(1, n) for n in (1, 16, 33)] + [Row(5, 30), Row(17, 17)]
    world = make_world(rows, dtype, (8, 2), 24, block_size, num_decodes=3, causal=causal)
    results = [world.run(backend, poison) for poison in POISONS]
    for result in results:
        world.check(result)
        assert torch.equal(result, results[0])


def test_it_moves_blocks(backend) -> None:
    kv = make_world([], "bfloat16").kv
    device = backend.allocate_kv_cache(kv, 4)
    host = backend.allocate_host_kv_cache(device, 2)
    assert sum(plane.shape[1] for plane in device.planes) == backend.kv_block_nbytes(kv)
    device.planes[0][3] = 7
    backend.swap_blocks(device, host, np.array([[3, 1]])).wait()
    backend.zero_blocks(device, np.array([3]))
    backend.swap_blocks(host, device, np.array([[1, 2]])).wait()
    backend.copy_blocks(device, np.array([[2, 1]]))
    assert [int(device.planes[0][block].unique().item()) for block in range(4)] == [0, 7, 7, 0]


@pytest.mark.parametrize(
    ("kv", "attention", "word"),
    [
        ({"dtype": "float16"}, {}, "float16"),
        ({"block_size": 8}, {}, "block size 8"),
        ({"head_size_v": 8}, {}, "value head size"),
        ({}, {"num_heads": 3}, "3 heads"),
        ({}, {"sliding_window": 4}, "sliding"),
        ({}, {"sinks": (0.0,) * 4}, "sinks"),
    ],
)
def test_it_refuses_what_it_cannot_do(backend, kv, attention, word) -> None:
    world = make_world([])
    pair = replace(world.kv, **kv), replace(world.spec, **attention)
    (reason,) = backend.unsupported(*pair)
    assert word in reason
    with pytest.raises(Unsupported):
        backend.attention_kernel(pair[1], pair[0])
    assert backend.unsupported(world.kv, world.spec) == []
