"""`Workbench`: what a row measures with: services of ours, the programs to compare with, and how often to repeat.

A row is a function from a workbench to `Line`s. It knows what to measure; it does not know how its lines are shown.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from bench.aside import aside
from bench.subjects import Ours, Subject
from chatcache.chat import ChatService
from chatcache.config import ServiceConfig
from chatcache.loader import LoadedModel, load_model

_owner_numbers = itertools.count(1)


@dataclass(frozen=True)
class Workbench:
    """`config` opens a service of ours; `peers` are the other programs, ready to measure.

    `num_runs`: how often each figure is taken, after a first time that does not count. `is_quick`: a row leaves out
    long contexts and slow parts. `text` is prose of any length, for prompts.
    """

    config: ServiceConfig
    peers: tuple[Subject, ...]
    tokenizer: PreTrainedTokenizerBase
    text: str
    num_runs: int = 3
    is_quick: bool = False
    open_service: Callable[[ServiceConfig], ChatService] = ChatService.open
    load_model: Callable[[ServiceConfig], LoadedModel] = load_model

    @contextmanager
    def service(self, **changes: Any) -> Iterator[ChatService]:
        """A service on the bench's data folder, with `changes` to its config. Opened again, it has what was stored.

        Work as an owner of your own (`service.for_owner(new_owner())`), so that no cache of another row helps.
        """
        service = self.open_service(dataclasses.replace(self.config, **changes))
        # As in app.py: to look for garbage in all that was loaded takes 0.3 s, in the middle of any figure.
        gc.collect()
        gc.freeze()
        try:
            yield service
        finally:
            service.close()

    @contextmanager
    def ours(self, **changes: Any) -> Iterator[Ours]:
        """chatcache as a subject, to be measured beside `peers`."""
        with self.service(**changes) as service:
            yield Ours(service)

    def model(self, **changes: Any) -> PreTrainedModel:
        """The model that `service` would have, with `changes` to its config."""
        return aside(self.load_model)(dataclasses.replace(self.config, **changes)).model

    def prompt(self, num_tokens: int) -> str:
        """A message of about `num_tokens` tokens."""
        ids: list[int] = self.tokenizer.encode(self.text, add_special_tokens=False)
        return str(self.tokenizer.decode(list(itertools.islice(itertools.cycle(ids), num_tokens))))

    def alternate(self, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        """The median of each measure over the runs, by its name.

        The measures take turns, so that a busy minute of the machine meets all of them. The first round is a warm-up.
        """
        figures: dict[str, list[float]] = {name: [] for name in measures}
        for run in range(self.num_runs + 1):
            for name, measure in measures.items():
                value = measure()
                if run > 0:
                    figures[name].append(value)
        return {name: statistics.median(values) for name, values in figures.items()}


def new_owner() -> str:
    """An owner that no other row has."""
    return f"bench-{next(_owner_numbers)}"
