"""What requests get when each runs alone: computed from the model, with no scheduler and no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baseboard.contract.plan import TokenLogprobs
from baseboard.request.request import Request
from baseboard.testing.device import Facts
from baseboard.testing.encoder import with_inputs
from baseboard.testing.grammar import Grammar
from baseboard.testing.model import Draw, next_token, pooled_value, token_logprobs
from baseboard.testing.sight import Sight
from baseboard.testing.source import coloured, source_slots


@dataclass(frozen=True, slots=True)
class Oracle:
    """A model that sees as ``sight`` says, on an empty, huge cache; texts end at ``max_model_len``."""

    sight: Sight
    max_model_len: int

    def outputs(self, request: Request, facts: Facts) -> list[int]:
        """All tokens that the request samples."""
        params, script, grammar = request.spec.params, facts.script, facts.grammar
        tokens, namespace = self._read(request, facts)
        outputs: list[int] = []
        limit = min(params.max_tokens or self.max_model_len, self.max_model_len - request.num_prompt)
        while len(outputs) < limit:
            draw = Draw(params.seed, facts.sample_index, len(outputs))
            token = (
                script[len(outputs)]
                if len(outputs) < len(script)
                else next_token(self.sight.of(tokens, namespace), draw, _allowed(grammar, outputs))
            )
            outputs.append(token)
            if token in request.stop_ids or _allowed(grammar, outputs) == []:
                break
            tokens.append(token)
        return outputs

    def pooled(self, request: Request, facts: Facts) -> int:
        """The value of the whole prompt."""
        prompt, namespace = self._read(request, facts)
        return pooled_value(self.sight.of(prompt, namespace))

    def prompt_logprobs(self, request: Request, facts: Facts) -> list[TokenLogprobs | None]:
        """Of each prompt token after those before it; None for the first."""
        read, namespace = self._read(request, facts)
        num_top = request.spec.params.prompt_logprobs or 0
        following = enumerate(request.prompt[1:], 1)
        rest = [token_logprobs(self.sight.of(read[:at], namespace), token, num_top) for at, token in following]
        return [None, *rest]

    def _read(self, request: Request, facts: Facts) -> tuple[list[int], int]:
        """What stands in the slots of a prompt and how they are marked, where everything is right."""
        read = with_inputs(request.prompt, request.spec.media)
        return read, coloured(facts.namespace, source_slots(request.spec.source, facts.namespace))


def _allowed(grammar: Grammar | None, outputs: Sequence[int]) -> list[int] | None:
    return None if grammar is None else sorted(grammar(outputs))
