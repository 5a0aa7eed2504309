"""What calls into the model libraries need around them: silence meanwhile, and what they take."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

from torch import nn
from transformers.utils import logging


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hold back the library's bars and advice; what matters to a person becomes an error or a notice of ours."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def can_keep_logits(model: nn.Module) -> bool:
    """Whether the model takes `logits_to_keep`, and so can leave out the logits of all but some tokens."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters
