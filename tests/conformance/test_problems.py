"""How inputs are made: what each family must have, and that seeds decide everything."""

from __future__ import annotations

import numpy as np
import pytest

from baseboard.kit.batch_checks import check_batch
from baseboard_conformance.case import case_seed
from baseboard_conformance.evidence import load, origin, pack, save, unpack
from baseboard_conformance.exits import UsageError
from baseboard_conformance.layouts import LAYOUTS, Layout, Row, fitted
from baseboard_conformance.mutants.plain import CAPABILITIES
from baseboard_conformance.oracle import visible
from baseboard_conformance.problem import FAMILIES, make_problem, step_batch
from baseboard_conformance.scenario import Scenario, geometry
from baseboard_conformance.shrinking import shrink


def problem(layout="mixed", family="gauss", seed=3, **options):
    return make_problem(geometry(Scenario("float32", layout, **options), CAPABILITIES), family, seed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 16, 128])
def test_every_batch_is_one_that_the_contract_allows(layout, block_size) -> None:
    made = problem(layout, block_size=block_size)
    check_batch(step_batch(made), made.geometry.num_blocks, block_size)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_belong_to_one_sequence_and_never_lie_in_order(layout) -> None:
    made = problem(layout)
    shared = made.geometry.layout.shared_blocks
    own = [block for row, t in zip(made.rows, made.tables, strict=True) if not row.padding for block in t[shared:]]
    assert len(set(own)) == len(own)
    assert 0 not in own
    for table in made.tables:
        assert len(table[shared:]) < 2 or table[-1] < table[shared:].max()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_decides_everything(family) -> None:
    first, again, other = problem(family=family), problem(family=family), problem(family=family, seed=4)
    assert all(np.array_equal(a.query, b.query) for a, b in zip(first.tensors, again.tensors, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(first.tables, again.tables, strict=True))
    assert not all(np.array_equal(a.query, b.query) for a, b in zip(first.tensors, other.tensors, strict=True))
    assert case_seed("a/b", 0) == case_seed("a/b", 0)
    assert len({case_seed("a/b", 0), case_seed("a/b", 1), case_seed("a/c", 0)}) == 3


@pytest.mark.parametrize("window", [None, 5])
def test_a_needle_is_one_key_that_decides(window) -> None:
    made = problem("chunked", "needle", window=window)
    spec = made.geometry.attention
    for tensors in made.tensors:
        seen = visible(len(tensors.query), len(tensors.key), window, causal=True)
        for h in range(spec.num_heads):
            x = spec.scale * tensors.query[:, h] @ tensors.key[:, h // 4].T
            x[~seen] = -np.inf
            weights = np.exp(x - x.max(axis=1, keepdims=True))
            assert (weights.max(axis=1) / weights.sum(axis=1)).min() > 0.9


def test_sequences_that_share_blocks_share_their_content() -> None:
    made = problem("shared_prefix")
    first, second = made.tensors[0], made.tensors[1]
    np.testing.assert_array_equal(first.key[:32], second.key[:32])
    assert not np.array_equal(first.key[32], second.key[32])
    assert made.tables[0][:2].tolist() == made.tables[1][:2].tolist()


def test_a_layout_is_cut_to_what_a_step_may_hold() -> None:
    assert len(fitted(LAYOUTS["many"](16), 5).rows) == 5
    assert Layout((Row(1, 4), Row(3, 3), Row(1, 9))).num_decodes == 1


def test_evidence_comes_back_as_it_was(tmp_path) -> None:
    made = problem("mixed", alibi="distinct", sinks=True, window=7, softcap=2.0)
    save(tmp_path / "x.npz", pack(made, float("nan")), {"case": "a/b", "seed": 7, "backend": "chip"})
    arrays = load(tmp_path / "x.npz")
    again, content = unpack(arrays)
    assert again.geometry == made.geometry
    assert np.isnan(content)
    np.testing.assert_array_equal(again.yardstick().truth, made.yardstick().truth)
    assert origin(arrays) == {"case": "a/b", "seed": 7, "backend": "chip"}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"text"])
def test_evidence_that_is_none_is_refused(tmp_path, content) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        load(path)


def test_evidence_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="no evidence"):
        unpack({"a": np.zeros(3)})
    with pytest.raises(UsageError, match="not written by this suite"):
        origin({"a": np.zeros(3)})


def test_shrinking_finds_the_least_that_is_wrong() -> None:
    """Wrong is: more than 20 tokens, and the second KV head is there."""
    made = problem("mixed")
    mark = made.tensors[2].key[0, 1, 0]

    def wrong(smaller) -> bool:
        return any(len(t.key) >= 17 and t.key[0, -1, 0] == mark for t in smaller.tensors)

    small = shrink(made, wrong, 60)
    assert [(row.query_len, row.seq_len) for row in small.rows] == [(1, 17)]
    assert small.geometry.kv.num_kv_heads == 1
    assert max(small.tables[0]) < small.geometry.num_blocks


def test_shrinking_survives_a_backend_that_raises() -> None:
    made = problem("decode")

    def wrong(smaller) -> bool:
        raise RuntimeError("no such shape")

    assert shrink(made, wrong, 5) is made
