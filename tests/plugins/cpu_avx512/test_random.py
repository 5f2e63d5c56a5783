from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.backends.world import POISONS, Row, make_world
from plugins.cpu_avx512.conftest import LEVELS, open_at

FLOATS = st.floats(0.25, 4)


@st.composite
def worlds(draw):
    kv_heads, ratio = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    heads = kv_heads * ratio
    decodes = [Row(1, n) for n in draw(st.lists(st.integers(1, 300), max_size=5))]
    chunks = [
        Row(new, old + new)
        for new, old in draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 90)), max_size=3))
    ]
    per_head = st.lists(FLOATS, min_size=heads, max_size=heads).map(tuple)
    size = 8 * draw(st.integers(1, 16))
    return make_world(
        (decodes + chunks) or [Row(1, 1)],
        draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        (heads, kv_heads),
        size,
        draw(st.sampled_from([8, 16, 32, 64])),
        num_decodes=len(decodes),
        causal=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        head_size_v=draw(st.sampled_from([size, 16, 40])),
        sliding_window=draw(st.none() | st.integers(1, 80)),
        softcap=draw(st.none() | FLOATS),
        alibi_slopes=draw(st.none() | per_head),
        sinks=draw(st.none() | per_head),
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_random_mixed_batch_equals_the_oracle(level) -> None:
    backend = open_at(level)

    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(world=worlds(), poison=st.sampled_from(POISONS))
    def check(world, poison) -> None:
        world.check(world.run(backend, poison))

    check()
    backend.close()
