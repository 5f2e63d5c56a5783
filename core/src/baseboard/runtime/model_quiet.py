"""Keeps transformers and its helpers from writing to the user's terminal while we work with them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No warning, log line below an error, or progress bar of transformers inside; everything as before after it.

    What matters to a user is checked by us and raised as a typed error. Python's warning filters belong to the whole
    process: another thread that warns meanwhile is silenced too.
    """
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf_logging.set_verbosity(logging.CRITICAL)
        hf_logging.disable_progress_bar()
        try:
            yield
        finally:
            hf_logging.set_verbosity(verbosity)
            if bars:
                hf_logging.enable_progress_bar()
