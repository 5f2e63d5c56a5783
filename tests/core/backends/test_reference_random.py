from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from baseboard.backends import reference
from core.backends.world import POISONS, Row, make_world

DECODES = st.lists(st.integers(1, 70), max_size=6)
CHUNKS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40)), max_size=4)
FLOATS = st.floats(0.25, 4)


@st.composite
def worlds(draw):
    kv_heads, ratio = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    heads = kv_heads * ratio
    decodes = [Row(1, n) for n in draw(DECODES)]
    chunks = [Row(new, old + new) for new, old in draw(CHUNKS)]
    per_head = st.lists(FLOATS, min_size=heads, max_size=heads).map(tuple)
    size = draw(st.integers(8, 40))  # a row of fewer numbers may cancel to next to nothing: no relative error then
    return make_world(
        (decodes + chunks) or [Row(1, 1)],
        draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        (heads, kv_heads),
        size,
        draw(st.sampled_from([1, 2, 4, 8, 16, 32])),
        num_decodes=len(decodes),
        causal=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        head_size_v=draw(st.sampled_from([size, size + 3])),
        sliding_window=draw(st.none() | st.integers(1, 80)),
        softcap=draw(st.none() | FLOATS),
        alibi_slopes=draw(st.none() | per_head),
        sinks=draw(st.none() | per_head),
    )


@settings(max_examples=200, deadline=None, derandomize=True)
@given(world=worlds(), poison=st.sampled_from(POISONS))
def test_a_random_mixed_batch_equals_the_oracle(world, poison) -> None:
    backend = reference.open_backend(reference.probe_devices()[0], {})
    world.check(world.run(backend, poison))
