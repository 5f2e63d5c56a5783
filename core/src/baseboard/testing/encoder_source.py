"""A simulated store of encodings outside the device: offers what a test puts there, late or broken if told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baseboard.contract.media import ContentId
from baseboard.scheduler.sources import Landing


@dataclass(slots=True)
class _Offer:
    latency: int | None
    lost: bool
    asked_in: int | None = None  # step
    asked_at: float = 0.0  # seconds


class SimulatedEncoderSource:
    """An ``EncoderSource``. What is late is sent from the first time it is asked for."""

    def __init__(self) -> None:
        self._offers: Final[dict[ContentId, _Offer]] = {}
        self._step = 0
        self._now = 0.0

    def offer(self, content: ContentId, latency: int | None = 0, *, lost: bool = False) -> None:
        """An encoding exists. ``latency`` in steps: 0 is fetched at once, None never arrives; ``lost``: it turns out
        to be missing when it is fetched.
        """
        self._offers[content] = _Offer(latency, lost)

    @property
    def is_awaited(self) -> bool:
        """Whether something that was asked for is still on its way."""
        return any(offer.asked_in is not None and not self._is_here(offer) for offer in self._offers.values())

    def find(self, content: ContentId) -> Landing | None:
        offer = self._offers.get(content)
        if offer is None:
            return None
        if offer.asked_in is None:
            offer.asked_in, offer.asked_at = self._step, self._now
        return Landing.NOW if self._is_here(offer) else Landing.LATER

    def fetch(self, content: ContentId) -> bool:
        """What a plan loads: whether it is there. What was lost is not offered again."""
        offer = self._offers.get(content)
        if offer is None or not offer.lost:
            return offer is not None
        del self._offers[content]
        return False

    def step(self, now: float, load_timeout: float | None) -> None:
        """One step goes by; what has been awaited for too long is not offered any more."""
        self._step += 1
        self._now = now
        if load_timeout is None:
            return
        for content, offer in list(self._offers.items()):
            if offer.asked_in is not None and not self._is_here(offer) and now - offer.asked_at >= load_timeout:
                del self._offers[content]

    def _is_here(self, offer: _Offer) -> bool:
        if offer.latency == 0:
            return True
        asked = offer.asked_in
        return offer.latency is not None and asked is not None and asked + offer.latency <= self._step
