"""A request whose text is taken piece by piece."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from baseboard.engine.results import TextDelta


@dataclass(slots=True)
class Stream:
    """What steps gave to one request and its reader has not taken yet: others may step the engine in between."""

    deltas: deque[TextDelta] = field(default_factory=deque[TextDelta])
    finished: bool = False
