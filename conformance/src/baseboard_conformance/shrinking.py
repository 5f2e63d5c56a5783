"""Finding a smaller problem that is still wrong: fewer sequences, fewer tokens, fewer heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from baseboard_conformance.layouts import Layout, Row
from baseboard_conformance.oracle import Tensors
from baseboard_conformance.problem import Problem
from baseboard_conformance.scenario import blocks_of


def shrink(problem: Problem, wrong: Callable[[Problem], bool], attempts: int) -> Problem:
    """The smallest problem found within so many attempts; ``problem`` itself where nothing helps."""
    left, improved = attempts, True
    while improved and left > 0:
        improved = False
        for smaller in _smaller(problem):
            left -= 1
            if _is_wrong(smaller, wrong):
                problem, improved = smaller, True
                break
            if left <= 0:
                break
    return problem


def _is_wrong(problem: Problem, wrong: Callable[[Problem], bool]) -> bool:
    try:
        return wrong(problem)
    except Exception:
        # A smaller problem that the backend cannot run at all shows another fault than the one looked for.
        return False


def _smaller(problem: Problem) -> Iterator[Problem]:
    rows = problem.rows
    if len(rows) > 1:
        yield from (_rows(problem, [index]) for index, row in enumerate(rows) if not row.padding)
        yield _rows(problem, list(range(len(rows) // 2)))
    if problem.geometry.kv.num_kv_heads > 1:
        yield from (_kv_head(problem, head) for head in range(problem.geometry.kv.num_kv_heads))
    if len(rows) == 1:
        row = rows[0]
        if row.query_len > 1:
            yield _tokens(problem, Row(1, row.seq_len))
            yield _tokens(problem, Row(row.query_len // 2, row.seq_len))
        for length in (row.seq_len // 2, row.seq_len - problem.geometry.kv.block_size, row.seq_len - 1):
            if row.query_len <= length < row.seq_len:
                yield _tokens(problem, Row(row.query_len, length))


def _rows(problem: Problem, keep: list[int]) -> Problem:
    # The tables stay as they are, so the pool must not get smaller: their ids would be out of range.
    layout = Layout(tuple(problem.rows[i] for i in keep), problem.geometry.layout.shared_blocks)
    spare = problem.geometry.num_blocks - problem.geometry.with_layout(layout).num_blocks
    layout = replace(layout, shared_blocks=layout.shared_blocks + spare)
    return Problem(
        problem.geometry.with_layout(layout),
        tuple(problem.tensors[i] for i in keep),
        tuple(problem.tables[i] for i in keep),
    )


def _tokens(problem: Problem, row: Row) -> Problem:
    """The only sequence with fewer tokens: its first ``row.seq_len``, and the last queries."""
    old = problem.tensors[0]
    small = _rows(problem, [0])
    layout = Layout((row,), small.geometry.layout.shared_blocks)
    spare = small.geometry.num_blocks - small.geometry.with_layout(layout).num_blocks
    layout = replace(layout, shared_blocks=layout.shared_blocks + spare)
    tensors = Tensors(old.query[-row.query_len :], old.key[: row.seq_len], old.value[: row.seq_len])
    table = problem.tables[0][: blocks_of(row.seq_len, problem.geometry.kv.block_size)]
    return Problem(small.geometry.with_layout(layout), (tensors,), (table,))


def _kv_head(problem: Problem, head: int) -> Problem:
    """One KV head and the query heads that read it."""
    spec = problem.geometry.attention
    ratio = spec.num_heads // spec.num_kv_heads
    own = slice(head * ratio, (head + 1) * ratio)
    attention = replace(
        spec,
        num_heads=ratio,
        num_kv_heads=1,
        alibi_slopes=None if spec.alibi_slopes is None else spec.alibi_slopes[own],
        sinks=None if spec.sinks is None else spec.sinks[own],
    )
    tensors = tuple(
        Tensors(t.query[:, own], t.key[:, head : head + 1], t.value[:, head : head + 1]) for t in problem.tensors
    )
    kv = replace(problem.geometry.kv, num_kv_heads=1)
    return Problem(replace(problem.geometry, attention=attention, kv=kv), tensors, problem.tables)
