"""A copy of the prefix index that knows of it only what KV events tell."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

from baseboard.kv.events import BlocksStored, IndexCleared, KVEvent


class Replica:
    """Keys and the text that leads to each; refuses events that contradict each other.

    With ``plain_texts`` there is nothing but tokens in any block, so that keys can be computed from what is told.
    """

    def __init__(self, plain_texts: bool = False) -> None:
        self._plain_texts = plain_texts
        self.texts: dict[bytes, tuple[int, ...]] = {}  #: key: the tokens of its own block
        self.num_stored = 0

    def apply(self, events: Iterable[KVEvent]) -> None:
        for event in events:
            if isinstance(event, IndexCleared):
                self.texts.clear()
            elif isinstance(event, BlocksStored):
                self._store(event)
            else:
                for key in event.keys:
                    del self.texts[key]

    def _store(self, event: BlocksStored) -> None:
        size = event.block_size
        assert len(event.token_ids) == size * len(event.keys)
        parent = event.parent
        for at, key in enumerate(event.keys):
            tokens = event.token_ids[at * size : (at + 1) * size]
            # The first block's key begins with its namespace, which an event does not tell.
            if parent is not None and self._plain_texts:
                text = blake2b(parent[:16] + array("i", tokens).tobytes(), digest_size=16).digest()
                assert key == text + parent[16:], "behind the text stands the layer group"
            assert key not in self.texts, "stored twice"
            self.texts[key] = tokens
            parent = key
            self.num_stored += 1
