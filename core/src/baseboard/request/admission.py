"""Checks a request against the model before anything is done for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from baseboard.contract.errors import RequestRejected
from baseboard.contract.sampling import SamplingParams


def check_terms(priority: object, tenant: object) -> None:
    """Raise ``RequestRejected`` for a priority or a tenant that nothing can be ordered by."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestRejected(f"priority={priority!r} must be a whole number; the lower, the sooner, also below 0")
    if tenant is not None and not isinstance(tenant, str):
        raise RequestRejected(f"tenant={tenant!r} must be a name, or None for nobody in particular")


def check_token_ids(prompt: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """Raise ``RequestRejected`` naming field and value for a token id that the model does not have."""
    named: Iterable[tuple[str, Iterable[int]]] = (
        ("prompt_token_ids", prompt),
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("logit_bias", params.logit_bias or ()),
    )
    for field, token in chain.from_iterable(((field, token) for token in tokens) for field, tokens in named):
        if isinstance(token, bool) or not isinstance(token, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestRejected(f"{field} holds {token!r}: token ids are whole numbers")
        if not 0 <= token < vocab_size:
            raise RequestRejected(f"{field} holds {token}, but the model's token ids are 0 to {vocab_size - 1}")
