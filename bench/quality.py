"""Rows: what smaller caches and smaller weights take, and how far they are from the full ones in what they say."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from bench.line import Line
from bench.workbench import Workbench
from chatcache.cache.kinds import make_session_cache
from chatcache.weights.form_choice import mean_divergence
from chatcache.weights.packed_linear import FORMS

KINDS = ("quantized-int8", "quantized-int4")
CHUNK_TOKENS = 256
EVERY = 8
"""Distributions are compared at every 8th token."""


def measure_quality(bench: Workbench) -> Iterator[Line]:
    """Mean Kullback-Leibler divergence from full weights and cache, and bytes per token of the caches."""
    num_tokens = 512 if bench.is_quick else 2048
    ids = bench.tokenizer.encode(bench.prompt(num_tokens), add_special_tokens=False)[:num_tokens]
    model = bench.model(weights="full")
    reference, num_bytes = _read(model, "dynamic", ids)
    yield Line("cache dynamic", "bytes/token", num_bytes)
    for kind in KINDS:
        logits, num_bytes = _read(model, kind, ids)
        yield Line(f"cache {kind}", "bytes/token", num_bytes)
        yield Line(f"cache {kind}", "KL, nats", mean_divergence(reference, logits))
    del model
    for form in (form for form in FORMS if form != "full"):
        logits, _ = _read(bench.model(weights=form), "dynamic", ids)
        yield Line(f"weights {form}", "KL, nats", mean_divergence(reference, logits))


@torch.inference_mode()
def _read(model: PreTrainedModel, kind: str, ids: list[int]) -> tuple[Tensor, float]:
    """Logits at every few tokens, `[positions, vocabulary]`, and what the cache takes for a token in the end."""
    held = make_session_cache(model, kind)
    kept = torch.arange(0, CHUNK_TOKENS, EVERY)
    pieces = []
    for start in range(0, len(ids) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
        chunk = ids[start : start + CHUNK_TOKENS]
        pieces.append(model(torch.tensor([chunk]), cache=held.cache, logits_to_keep=kept).logits[0])
        held.advance(chunk)
    held.settle()
    return torch.cat(pieces), held.num_bytes / held.num_tokens
