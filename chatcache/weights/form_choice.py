"""Which weight form is the fastest on this machine that still says what the full weights say: measured once per model.

Quality is the mean Kullback-Leibler divergence of the next-token distributions on a shipped text, from those of the
full weights, in nats. Speed is that of one row through layers like the model's largest one; of forms that are about as
fast the more exact one is taken, so that the choice does not depend on what else the machine does.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from chatcache.checkpoint.json_memory import JsonMemory
from chatcache.library_calls import can_keep_logits
from chatcache.weights.packed_linear import FORMS, PackedLinear

MAX_DIVERGENCE = 0.01
SAMPLE_TEXT_FILE = Path(__file__).parent / "sample_text.txt"

_MIN_TEXT_TOKENS = 128
_READING_S, _FLOPS_PER_S = 20, 1.5e11
"""A large model reads less of the text, so that this takes a minute at most."""
_EVERY = 4
"""Distributions are compared at every 4th token."""
_NUM_ROUNDS = 15
"""In each round every form is timed, so that what disturbs one disturbs the others as well."""
_TIMED_BYTES = 64 * 2**20
"""A step reads all weights, more than a processor keeps at hand: so do as many layers as take so much in full. From one
that it keeps, int8 and int4 are multiplied equally fast on two cores; from memory int4 takes two thirds of the time."""
_TIE = 1.1
"""A form that is not so much faster than a more exact one is no faster."""


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The chosen form; what was measured on the way, by form: seconds for a row, and divergence where it was needed."""

    form: str
    row_s: dict[str, float]
    divergence: dict[str, float]


def choose_form(load: Callable[[str], PreTrainedModel], token_ids: Sequence[int]) -> FormChoice:
    """`load(form)` gives the model with its weights in that form, a new one each time; `token_ids` are the sample's.

    Forms are tried in the order of `faster_forms`; full weights are always good enough.
    """
    model = load("full")
    row_s = _row_s(model)
    divergence: dict[str, float] = {}
    if candidates := faster_forms(row_s):
        reference = _logits(model, token_ids)
        for form in candidates:
            divergence[form] = mean_divergence(reference, _logits(load(form), token_ids))
            if divergence[form] <= MAX_DIVERGENCE:
                return FormChoice(form, row_s, divergence)
    return FormChoice("full", row_s, divergence)


def faster_forms(row_s: Mapping[str, float]) -> list[str]:
    """The forms that are faster than full weights, from the fastest on; of those about as fast the most exact one
    first."""
    faster: list[str] = []
    left = list(FORMS)  # the most exact one first
    while True:
        least_s = min(row_s[form] for form in left)
        form = next(form for form in left if row_s[form] <= _TIE * least_s)
        if form == "full":
            return faster
        faster.append(form)
        left.remove(form)


class FormChoices:
    """Choices made on this machine, by model, in a small JSON file. One that cannot be read or written costs time."""

    def __init__(self, file: Path) -> None:
        self._memory = JsonMemory(file)

    def get(self, key: str) -> FormChoice | None:
        """The choice for a model; None where none was made."""
        try:
            choice = FormChoice(**self._memory.load()[key])
        except (KeyError, TypeError):
            return None
        return choice if choice.form in FORMS else None

    def put(self, key: str, choice: FormChoice) -> None:
        self._memory.put(key, asdict(choice))


@torch.inference_mode()
def _row_s(model: PreTrainedModel) -> dict[str, float]:
    """How long a row takes through a layer like the model's largest one, in each form, the output head left out: the
    median of the rounds."""
    head = model.get_output_embeddings()
    linears = [each for each in model.modules() if type(each) is nn.Linear and each is not head]
    if not linears:
        return dict.fromkeys(FORMS, 0.0)
    largest = max(linears, key=lambda each: each.weight.numel())
    num_layers = max(1, min(len(linears), _TIMED_BYTES // largest.weight.nbytes))
    layers = {form: _copies(PackedLinear([copy.deepcopy(largest)], form), num_layers) for form in FORMS}
    row = torch.ones((1, largest.in_features), dtype=largest.weight.dtype)
    rounds = [{form: _pass_s(each, row) / num_layers for form, each in layers.items()} for _ in range(_NUM_ROUNDS)]
    return {form: statistics.median(each[form] for each in rounds) for form in FORMS}


def _copies(layer: PackedLinear, num: int) -> list[PackedLinear]:
    return [copy.deepcopy(layer) for _ in range(num)]


def _pass_s(layers: Sequence[PackedLinear], row: Tensor) -> float:
    began_s = time.perf_counter()
    for layer in layers:
        layer(row)
    return time.perf_counter() - began_s


@torch.inference_mode()
def _logits(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """`[positions, vocabulary]`, for every few tokens of the text, as many as can be read in reasonable time."""
    num_weights = sum(each.numel() for each in model.parameters())
    num_tokens = min(max(int(_READING_S * _FLOPS_PER_S / (2 * num_weights)), _MIN_TEXT_TOKENS), len(token_ids))
    ids = torch.tensor([token_ids[:num_tokens]], device=model.device)
    if can_keep_logits(model):
        kept: Tensor = model(ids, use_cache=False, logits_to_keep=torch.arange(0, num_tokens, _EVERY)).logits[0]
        return kept
    logits: Tensor = model(ids, use_cache=False).logits[0, ::_EVERY]
    return logits


def mean_divergence(reference: Tensor, logits: Tensor) -> float:
    """Of the distributions that `logits` give from those that `reference` gives, `[positions, vocabulary]` each."""
    total = 0.0
    for ours, theirs in zip(logits.split(64), reference.split(64), strict=True):
        log_p, log_q = theirs.float().log_softmax(-1), ours.float().log_softmax(-1)
        total += float((log_p.exp() * (log_p - log_q)).sum())
    return total / len(reference)
