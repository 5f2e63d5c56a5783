"""The simulated model: its next token depends on everything that attention would read, and on nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, log
from typing import Final, NamedTuple

from baseboard.contract.plan import RankedToken, TokenLogprobs

VOCABULARY: Final = 97


class Slot(NamedTuple):
    """What one slot of the KV cache holds."""

    token: int
    position: int
    namespace: int


#: Content of slots that were never written, or whose block was given back.
POISON: Final = Slot(-1, -1, -1)


@dataclass(frozen=True, slots=True)
class Draw:
    """Which of a request's draws is made. ``seed`` None is greedy: sample and position do not matter."""

    seed: int | None
    sample_index: int
    output_index: int


def namespace_number(namespace: bytes) -> int:
    return int.from_bytes(blake2b(namespace, digest_size=7).digest(), "little")


def pooled_value(context: Sequence[Slot]) -> int:
    """What a pooling request gets of a prompt."""
    return hash(tuple(context))


def token_logprobs(context: Sequence[Slot], token: int, num_top: int) -> TokenLogprobs:
    """What the model's distribution says of a token after this context, and of its ``num_top`` best ones."""
    seen = hash(tuple(context))
    scores = [hash((seen, candidate)) % 10_007 / 1_000 for candidate in range(VOCABULARY)]
    total = log(sum(map(exp, scores)))
    order = sorted(range(VOCABULARY), key=lambda candidate: (-scores[candidate], candidate))

    def ranked(candidate: int) -> RankedToken:
        rank = 1 + sum(1 for score in scores if score > scores[candidate])
        return RankedToken(candidate, scores[candidate] - total, rank)

    return TokenLogprobs(ranked(token), tuple(map(ranked, order[:num_top])))


def next_token(context: Sequence[Slot], draw: Draw, allowed: Collection[int] | None = None) -> int:
    """Tuples of ints hash alike in every process, so a run can be repeated anywhere."""
    seen = hash(tuple(context))
    if draw.seed is not None:
        seen = hash((seen, draw.seed, draw.sample_index, draw.output_index))
    if allowed is not None:
        return sorted(allowed)[seen % len(allowed)]
    return seen % VOCABULARY
