from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baseboard.kit.pairs import check_blocks, check_copy_pairs, check_swap_pairs

IDS = st.integers(-1, 8)
PAIRS = st.lists(st.tuples(IDS, IDS), max_size=5)


def accepts(check, *arguments) -> bool:
    try:
        check(*arguments)
    except ValueError:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(PAIRS, st.integers(1, 8), st.integers(1, 8))
def test_exactly_the_sound_lists_are_accepted(pairs, num_source, num_destination) -> None:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    sources, destinations = [s for s, _ in pairs], [d for _, d in pairs]
    unique = len(set(destinations)) == len(destinations)
    known = all(0 <= s < num_source for s in sources) and all(0 <= d < num_destination for d in destinations)
    assert accepts(check_swap_pairs, array, num_source, num_destination) == (unique and known)
    known = all(0 <= i < num_source for i in sources + destinations)
    apart = not set(sources) & set(destinations)
    assert accepts(check_copy_pairs, array, num_source) == (unique and known and apart)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_any_integers_come_back_as_int64(dtype) -> None:
    assert check_copy_pairs(np.array([[1, 2]], dtype), 3).dtype == np.int64
    assert check_blocks(np.array([1, 2], dtype), 3).tolist() == [1, 2]


def test_a_long_list_is_named_in_part() -> None:
    with pytest.raises(ValueError, match=r"\[5, 6, 7, 8, 9, 10, 11, 12, \.\.\.\] are out of range: .* blocks 0 to 4"):
        check_blocks(np.arange(20), 5)
