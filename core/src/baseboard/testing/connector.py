"""A simulated store of keys and values outside the device: offers what a test puts there, late or broken if told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from baseboard.request.request import Request
from baseboard.scheduler.sources import Found, Landed, Landing, Place
from baseboard.testing.memory import SimulatedMemory
from baseboard.testing.model import Slot


class Named(Protocol):
    """A request as the test has it: a handle."""

    id: Final[str]


@dataclass(frozen=True, slots=True)
class Offer:
    """KV of a prompt's first tokens. ``latency`` in steps: 0 is fetched at once, None never arrives."""

    tokens: tuple[int, ...]
    latency: int | None
    lost_blocks: frozenset[int]  #: indices, in the prompt, of blocks that turn out to be missing
    known_from: int  #: step from which it can be found


@dataclass(frozen=True, slots=True)
class _Sending:
    request: Request
    place: Place
    offer: Offer
    lands_at: int | None


class SimulatedConnector:
    """A ``PrefixSource``. ``namespace_of`` tells whose slots are written."""

    def __init__(self, memory: SimulatedMemory, namespace_of: Callable[[str], int]) -> None:
        self._memory: Final = memory
        self._namespace_of: Final = namespace_of
        self._offers: Final[list[Offer]] = []
        self._sending: Final[dict[Request, _Sending]] = {}
        self._chosen: Final[dict[str, Offer]] = {}
        self._stores: Final[dict[str, int]] = {}  # request id: steps that the store still reads its blocks
        self._reading: Final[dict[Request, int]] = {}  # request: step at which the reading ends
        self._step = 0

    # --- what a test says -------------------------------------------------------------------------------------

    def offer(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        latency: int | None = 0,
        lost_blocks: Sequence[int] = (),
        known_after: int = 0,
    ) -> None:
        """KV of the first ``num_tokens`` tokens of ``prompt`` exists, and is found ``known_after`` steps from now."""
        known_from = self._step + known_after
        self._offers.append(Offer(tuple(prompt[:num_tokens]), latency, frozenset(lost_blocks), known_from))

    def store(self, stored: Named, latency: int) -> None:
        """When this request ends its blocks are read for ``latency`` more steps, and it comes back with a ticket."""
        self._stores[stored.id] = latency

    # --- what the scheduler asks ------------------------------------------------------------------------------

    def find(self, request: Request, num_local: int) -> Found | None:
        best: tuple[int, Offer] | None = None
        for offer in self._offers:
            length = self._usable(request, offer)
            if offer.known_from <= self._step and length > max(num_local, best[0] if best else 0):
                best = (length, offer)
        if best is None:
            return None
        length, offer = best
        self._chosen[request.id] = offer
        return Found(length - num_local, Landing.NOW if offer.latency == 0 else Landing.LATER)

    def begin(self, request: Request, place: Place) -> None:
        offer = self._chosen[request.id]
        lands_at = None if offer.latency is None else self._step + offer.latency
        self._sending[request] = _Sending(request, place, offer, lands_at)

    def cancel(self, request: Request) -> None:
        self._sending.pop(request, None)

    def handover(self, request: Request) -> Mapping[str, Any] | None:
        if request.id not in self._stores:
            return None
        return {**(request.spec.kv_transfer or {}), "ticket": request.id, "num_tokens": request.computed}

    def keeps(self, request: Request) -> bool:
        latency = self._stores.pop(request.id, None)
        if latency is None:
            return False
        self._reading[request] = self._step + latency
        return True

    # --- what time brings -------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step goes by."""
        self._step += 1

    def landed(self) -> list[Landed]:
        landed: list[Landed] = []
        for request, sending in list(self._sending.items()):
            if sending.lands_at is not None and sending.lands_at <= self._step:
                del self._sending[request]
                good = self._write(request.id, sending.place.blocks, sending.place, sending.offer)
                landed.append(Landed(request, good))
        return landed

    def read_out(self) -> list[Request]:
        done = [request for request, until in self._reading.items() if until <= self._step]
        for request in done:
            del self._reading[request]
        return done

    def fetch(self, request_id: str, blocks: Sequence[int], place: Place) -> int:
        """Write what a plan loads; returns how many leading tokens of it are good: none that nobody offered."""
        offer = self._chosen.get(request_id)
        return 0 if offer is None else self._write(request_id, blocks, place, offer)

    def _usable(self, request: Request, offer: Offer) -> int:
        """Whole blocks of the offer that the request begins with, short of its first input and of its last token.

        What a text with a source has depends on it, so nothing of a plain text is of use.
        """
        if request.spec.source:
            return 0
        size = self._memory.block_size
        length = 0
        for mine, theirs in zip(request.tokens, offer.tokens, strict=False):
            if mine != theirs:
                break
            length += 1
        media = request.spec.media
        return min(length, media[0].offset if media else length, len(request.tokens) - 1) // size * size

    def _write(self, request_id: str, blocks: Sequence[int], place: Place, offer: Offer) -> int:
        size, namespace = self._memory.block_size, self._namespace_of(request_id)
        for position in range(place.first, place.first + place.num_tokens):
            if position // size in offer.lost_blocks:
                return position - place.first
            content = Slot(offer.tokens[position], position, namespace)
            self._memory.write(blocks[position // size], position % size, content)
        return place.num_tokens
