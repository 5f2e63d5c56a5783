"""What each client of a simulation has been given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from baseboard.scheduler.commit import Outcome


class Mailboxes:
    """Outcomes, split by client, as an engine with several front ends would hand them on."""

    def __init__(self) -> None:
        self._tokens: Final[dict[int, dict[str, list[int]]]] = {}

    def deliver(self, outcome: Outcome) -> None:
        for client, part in outcome.by_client().items():
            box = self._tokens.setdefault(client, {})
            for request, token in zip(part.requests, part.tokens, strict=True):
                box.setdefault(request.id, []).append(token)

    def of(self, client: int) -> Mapping[str, list[int]]:
        """By request id, all tokens so far."""
        return self._tokens.get(client, {})
