"""The stand-in catches every plugin that breaks a rule, and the plugin itself breaks none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from baseboard_ascend_npu import limits
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_standin.emulator import fused as emulated
from baseboard_ascend_standin.emulator.constraints import ConstraintViolation
from plugins.ascend_npu.emulated.mutants import MUTANTS, Mutation, every_second
from plugins.ascend_npu.emulated.npu_world import NpuWorld, Row, make_world

ROWS = [Row(1, 9), Row(1, 33), Row(5, 20)]
DOCUMENT = Path(__file__).parents[4] / "docs" / "ascend.md"


def world(rows: list[Row] = ROWS, **options: Any) -> NpuWorld:
    return make_world(rows, num_decodes=sum(row.query_len == 1 for row in rows), **options)


def run(backend: AscendBackend, given: dict[str, Any]) -> None:
    """Do what a mutant is run on. Raises ``AssertionError`` where the result is wrong."""
    options = dict(given)
    if "operator" in options:
        run_operator(backend, options["operator"])
        return
    strided = options.pop("strided", False)
    made = world(**options)
    if not strided:
        made.check(made.run(backend))
        return
    cache = made.poisoned_cache(backend, 0.0)
    step = backend.build_attention_metadata(made.batch(), cache)
    query = every_second(torch.cat(made.query).to("npu"))
    backend.attention_kernel(made.spec, made.kv).attend(query, cache.layer(0), step)


def run_operator(backend: AscendBackend, name: str) -> None:
    spec = {"hidden_size": 64, "dtype": "bfloat16", "eps": 1e-6, "rotary_dim": 64, "interleaved": False}
    kernel: Any = backend.operator_kernel(name, spec)
    rows = torch.ones(3, 64, dtype=torch.bfloat16).to("npu")
    heads = rows.view(3, 1, 64)
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]] * 3)).to("npu")
    arguments = {
        "rms_norm": (rows, rows[0]),
        "add_rms_norm": (rows, rows, rows[0]),
        "silu_and_mul": (rows,),
        "rotary_embedding": (heads, heads, torch.arange(3).to("npu"), torch.zeros(8, 64).to(rows)),
        "top_k_top_p": (
            logits,
            torch.tensor([5, 2, 1], dtype=torch.int32).to("npu"),
            torch.tensor([0.6, 1.0, 1.0]).to("npu"),
        ),
    }
    result = kernel(*arguments[name])
    if name == "top_k_top_p":
        assert result.cpu().isfinite().sum(-1).tolist() == [2, 2, 1]


@pytest.mark.parametrize(("rule", "mutate", "options"), MUTANTS, ids=[f"{i}-{m[0]}" for i, m in enumerate(MUTANTS)])
def test_mutants_are_caught(
    backend: AscendBackend, monkeypatch: pytest.MonkeyPatch, rule: str, mutate: Mutation, options: dict[str, Any]
) -> None:
    mutate(monkeypatch, backend)
    with pytest.raises((AssertionError, ConstraintViolation)) as caught:
        run(backend, options)
    assert getattr(caught.value, "constraint", "wrong") == rule or rule == "wrong"


def test_none_is_caught_for_the_wrong_reason(backend: AscendBackend) -> None:
    """What the mutants run, the plugin itself runs: but for what it refuses before anything is allocated."""
    refused = 0
    seen: list[dict[str, Any]] = []
    for _, _, options in MUTANTS:
        if options in seen:
            continue
        seen.append(options)
        made = None if "operator" in options else world(**{k: v for k, v in options.items() if k != "strided"})
        if made is not None and made.kv.block_size == 16 and backend.unsupported(made.kv, made.spec):
            refused += 1
        elif made is None or len(made.rows) <= limits.MAX_SEQUENCES:
            run(backend, options)
    assert refused == 2  # the two head numbers


def documented() -> dict[str, str]:
    """The document's table of rules: how many mutants break each."""
    found = re.findall(r"^\| `([a-z_0-9.*]+)` \| .+ \| (.+?) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return {rule: mutants for rule, mutants in found if "." in rule}


def asserted() -> set[str]:
    """Every rule that the stand-in asserts, read off its text; ``*`` for the name of an argument."""
    prefixes = {"_CHECKS": "", "_SCATTER": "scatter", "_NORM": "rms_norm", "_SWIGLU": "swiglu", "_MROPE": "mrope"}
    prefixes["_FILTER"] = "top_k_top_p"
    rules = set[str]()
    for path in Path(emulated.__file__).parent.glob("*.py"):
        operator = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            aliased = re.search(r"require = (_[A-Z]+)\.require", line)
            operator = prefixes[aliased[1]] or path.stem if aliased else operator
            for owner, rule in re.findall(r"(?:(_[A-Z]+)\.)?\brequire\(f?\"([^\"]+)\"", line):
                rules.add(f"{(prefixes[owner] or path.stem) if owner else operator}.{re.sub('{.+?}', '*', rule)}")
    return rules


def test_the_document_lists_every_rule_and_every_rule_has_a_mutant() -> None:
    rules = asserted()
    assert len(rules) > 70
    counts = dict.fromkeys(rules, 0)
    for broken, _, _ in MUTANTS:
        starred = re.sub(r"\.\w+\.(contiguous|device|shape)$", r".*.\1", broken)
        for rule in (broken, starred):
            if rule in counts:
                counts[rule] += 1
                break
    table = documented()
    assert table.keys() == rules
    assert [rule for rule, count in counts.items() if not count] == ["fused.cache.row"]
    assert {rule: text for rule, text in table.items() if rule != "fused.cache.row"} == {
        rule: str(count) for rule, count in counts.items() if rule != "fused.cache.row"
    }
