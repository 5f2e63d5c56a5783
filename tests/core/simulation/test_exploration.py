"""Small worlds, every state and every order of events. ``BASEBOARD_LONG_TESTS=1`` makes them larger."""

from __future__ import annotations

import os
from collections.abc import Sequence

from baseboard.request.status import TRANSITIONS, Event, Status
from core.simulation.explorer import Bounds, explore

LONG = os.environ.get("BASEBOARD_LONG_TESTS") == "1"

SHORT = {"prompt": [1, 2], "max_tokens": 3}
MIDDLE = {"prompt": [1, 2, 3], "max_tokens": 2}
LARGE = {"prompt": [1, 2, 3, 4], "max_tokens": 2}
TIGHT = {"num_blocks": 3, "block_size": 2, "max_num_batched_tokens": 3}
ROOMY = {"num_blocks": 4, "block_size": 2, "max_num_batched_tokens": 4, "num_host_blocks": 2}


def even_then_end(outputs: Sequence[int]) -> list[int]:
    return [] if len(outputs) == 2 else [2, 4, 6]


WORLDS = (
    Bounds("three in a tight pool", TIGHT, (SHORT, MIDDLE, LARGE), ("recompute",), ("abort",)),
    Bounds("all that can go wrong", ROOMY, (MIDDLE, SHORT), ("recompute", "swap"), ("abort", "reset", "fail")),
    Bounds("one step ahead", ROOMY | {"pipeline_depth": 1}, (MIDDLE, SHORT), ("swap",), ("abort",)),
    Bounds("samples and a fork", ROOMY, (SHORT | {"n": 2, "seed": 1},), ("recompute", "swap"), ("fork", "abort")),
    Bounds("drafts", ROOMY | {"num_draft_tokens": 2}, (MIDDLE, LARGE), ("recompute", "swap"), ("fail",)),
    Bounds("a grammar", ROOMY, (SHORT, MIDDLE), ("recompute",), ("abort",), grammars={1: even_then_end}),
    Bounds("windows", ROOMY | {"num_blocks": 6, "layer_windows": (None, 2)}, (LARGE, SHORT), ("recompute", "swap")),
    Bounds(
        "keys and values from outside",
        ROOMY | {"max_num_seqs": 1},
        (LARGE, MIDDLE),
        ("recompute",),
        ("fail", "reset"),
        offers=(
            {"prompt": [1, 2, 3, 4], "num_tokens": 2, "latency": 2},
            {"prompt": [1, 2, 3, 4], "num_tokens": 4, "latency": 0, "lost_blocks": (1,)},
        ),
    ),
    Bounds(
        "who holds blocks has to let go",
        ROOMY | {"max_num_batched_tokens": 8},
        tuple({"prompt": [key] * length, "max_tokens": 1} for key, length in ((1, 6), (2, 6), (3, 3))),
        offers=(
            {"prompt": [1, 1], "num_tokens": 2, "latency": 1},
            {"prompt": [2, 2], "num_tokens": 2, "latency": 1},
            {"prompt": [3, 3], "num_tokens": 2, "latency": 1},
        ),
    ),
    Bounds(
        "what was sent is lost",
        ROOMY,
        (MIDDLE, LARGE),
        ("recompute",),
        ("abort", "fail"),
        offers=({"prompt": [1, 2], "num_tokens": 2, "latency": 1, "lost_blocks": (0,)},),
    ),
    Bounds(
        "prompts in pieces",
        ROOMY,
        (MIDDLE | {"streaming": True}, LARGE),
        ("recompute", "swap"),
        ("abort",),
        pieces={0: ([4, 5],)},
    ),
    Bounds(
        "prompts of one token, to be continued",
        TIGHT | {"num_host_blocks": 2},
        ({"prompt": [1], "max_tokens": 2, "streaming": True}, MIDDLE),
        ("swap",),
        ("fail",),
        pieces={0: ([4, 5],)},
    ),
    Bounds("pooling", TIGHT | {"pipeline_depth": 1}, (LARGE | {"task": "pool"}, SHORT), ("recompute",), ("fail",)),
    Bounds(
        "a device out of order",
        TIGHT | {"pipeline_depth": 1, "device_in_order": False},
        (MIDDLE, SHORT),
        ("recompute",),
        ("abort",),
    ),
    Bounds("prompts first", ROOMY | {"policy": "prefill_first"}, (SHORT, MIDDLE), ("swap",), ("abort",)),
    Bounds("adapters", ROOMY | {"max_loras": 1}, (SHORT | {"adapter": "x"}, MIDDLE | {"adapter": "y"}, SHORT), ()),
)  # fmt: skip
LARGER_WORLDS = (
    Bounds("two steps ahead", ROOMY | {"pipeline_depth": 2}, (MIDDLE, SHORT), ("recompute", "swap"), ("abort",)),
    Bounds("three, all that can go wrong", ROOMY, (MIDDLE, SHORT, LARGE), ("recompute", "swap"), ("abort", "fail")),
)


def test_every_state_of_small_worlds() -> None:
    """In each the invariants hold, and from each every request ends with the tokens it has alone."""
    covered: set[tuple[Event, Status]] = set()
    for bounds in WORLDS + (LARGER_WORLDS if LONG else ()):
        explored = explore(bounds)
        covered |= explored.covered
        print(f"{bounds.name}: {explored.num_states} states, {explored.num_events} events")  # with -s
        assert explored.num_states > 10, "a world in which hardly anything happens"
    assert covered <= set(TRANSITIONS)
    missing = sorted(f"{event.value} in {status.value}" for event, status in set(TRANSITIONS) - covered)
    assert missing == [], "pairs of the transition table that never occur"
