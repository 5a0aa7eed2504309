"""Turns that write at the same time share a forward: each feeds its next token, to its own cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from chatcache.decode_step import DecodeStep
from chatcache.engine import TurnRun

logger = logging.getLogger(__name__)


def feed_together(decode_step: DecodeStep, runs: Sequence[TurnRun]) -> None:
    """Feed the next token of every run that would feed one alone, where these are several; each run then chooses in its
    own step. Turns join and leave by being in `runs` or not. Where the forward fails, each run feeds its token alone,
    and what is wrong with one of them stays its own affair.
    """
    ready = [(run, *token) for run in runs if (token := run.next_token()) is not None]
    if len(ready) < 2:
        return
    logits = None
    try:
        logits = decode_step([[token_id] for _, token_id, _ in ready], [cache for _, _, cache in ready])
    except Exception:
        logger.warning("A forward for %d turns failed; each goes on alone", len(ready), exc_info=True)
    # Outside the `except` block: until it is left, the failed frames hold their tensors.
    for index, (run, _, _) in enumerate(ready):
        if logits is None:
            run.undo_shared()
        else:
            run.take_shared(logits[index])
