"""SmolLM2 end to end with recorded decode steps says what it says with every step told kernel by kernel.

``python -m baseboard_cuda_model.recorded [--backend cuda]``: greedy tokens of a backend in float32 are the same, and
their logprobs are but for rounding, which differs where a recorded step is padded or splits its keys otherwise.
Its exit code is 3 where transformers or the package with the model is not installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from baseboard_cuda_model import NOT_HERE, POOLS, TEXTS, missing

if TYPE_CHECKING:
    from baseboard import LLM

#: Largest difference of a logprob: some roundings of float32, thirty layers deep.
ALLOWED: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Said:
    """What a model said to some prompts."""

    tokens: list[list[int]]
    logprobs: list[list[float]]  #: of these tokens
    replayed: int  #: steps that were replayed


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same requests with recorded steps and without."""

    recorded: Said
    told: Said
    new_tokens: int  #: that each prompt was to get

    @property
    def equal(self) -> int:
        """Prompts that got all of their tokens, and the same ones."""
        pairs = zip(self.recorded.tokens, self.told.tokens, strict=True)
        return sum(a == b and len(a) == self.new_tokens for a, b in pairs)

    @property
    def distances(self) -> list[float]:
        """Of the logprobs, token by token."""
        pairs = zip(self.recorded.logprobs, self.told.logprobs, strict=True)
        return [abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=False)]

    @property
    def passed(self) -> bool:
        """Not where nothing was replayed: then both are the same run. A logprob that is no number is far off."""
        alike = self.equal == len(self.told.tokens) and all(far <= ALLOWED for far in self.distances)
        return alike and self.recorded.replayed > 0 and self.told.replayed == 0

    def __str__(self) -> str:
        furthest = max(self.distances, default=0.0)
        return (
            f"{self.equal} of {len(self.told.tokens)} prompts equal, logprobs within {furthest:.1e} "
            f"(allowed {ALLOWED:.0e}), {self.recorded.replayed} steps replayed"
        )


def compare(open_llm: Callable[..., LLM], prompts: Sequence[Any], new_tokens: int) -> Comparison:
    """``open_llm`` takes ``enable_graphs`` and gives an LLM, which is closed again."""
    recorded = said(open_llm(enable_graphs=True), prompts, new_tokens)
    return Comparison(recorded, said(open_llm(enable_graphs=False), prompts, new_tokens), new_tokens)


def said(llm: LLM, prompts: Sequence[Any], new_tokens: int) -> Said:
    """Greedy, whatever the tokens are."""
    from baseboard import SamplingParams

    with llm:
        wish = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=0)
        samples = [output.outputs[0] for output in llm.generate(prompts, wish)]
        return Said(
            [list(sample.token_ids) for sample in samples],
            [
                [
                    position[token].logprob
                    for token, position in zip(sample.token_ids, sample.logprobs or (), strict=True)
                ]
                for sample in samples
            ],
            llm.stats()["num_replayed_steps"],
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one line; 1 when anything differs or nothing was replayed, 3 when something is not installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--new-tokens", type=int, default=32)
    options = parser.parse_args(arguments)
    if missing():
        sys.stdout.write(f"not installed: {', '.join(missing())}\n")
        return NOT_HERE
    from baseboard import LLM

    found: list[Comparison] = []
    for settings in POOLS:
        open_llm = partial(LLM, "smollm2", backend=options.backend, dtype="float32", **settings)
        found.append(compare(open_llm, TEXTS, options.new_tokens))
    pools = (f"{one} with {pool['num_kv_blocks']} blocks" for one, pool in zip(found, POOLS, strict=True))
    sys.stdout.write(f"{'; '.join(pools)}\n")
    return int(not all(one.passed for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
