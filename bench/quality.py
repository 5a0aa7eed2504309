"""Rows: what smaller caches and smaller weights take, how far they are from the full ones in what they say, and how
fast a smaller cache is read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from bench.aside import aside
from bench.line import Line, Ratio
from bench.speed import NUM_NEW_TOKENS, contexts
from bench.workbench import Workbench
from chatcache.cache.kinds import make_session_cache
from chatcache.cache.session_cache import SessionCache
from chatcache.decode_step import DecodeStep
from chatcache.weights.form_choice import mean_divergence
from chatcache.weights.packed_linear import FORMS

KINDS = ("quantized-int8", "quantized-int4")
_SPEED_GOALS = {"quantized-int8": 0.8}
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


def measure_cache_kinds(bench: Workbench) -> Iterator[Line]:
    """Tokens per second of the model's forwards with a smaller cache beside a full one, at the longest context."""
    num_tokens = contexts(bench)[-1]
    ids = bench.tokenizer.encode(bench.prompt(num_tokens), add_special_tokens=False)[:num_tokens]
    model = bench.model()
    step = DecodeStep.of(model)
    measures = {kind: partial(_tokens_per_s, model, step, _filled(model, kind, ids)) for kind in ("dynamic", *KINDS)}
    speeds = bench.alternate(measures)
    for kind in KINDS:
        ratio = Ratio("dynamic", speeds[kind] / speeds["dynamic"], at_least=_SPEED_GOALS.get(kind))
        others = {"dynamic": speeds["dynamic"]}
        yield Line(f"decode at {num_tokens:,}, {kind}", "tokens/s", speeds[kind], others, (ratio,))


@aside
@torch.inference_mode()
def _tokens_per_s(model: PreTrainedModel, step: DecodeStep | None, held: SessionCache) -> float:
    num_tokens = held.num_tokens
    began_s = time.perf_counter()
    for _ in range(NUM_NEW_TOKENS):
        token = held.token_ids[-1]
        if step is None:
            model(torch.tensor([[token]], device=model.device), cache=held.cache)
        else:
            step([[token]], [held])
        held.advance([token])
    speed = NUM_NEW_TOKENS / (time.perf_counter() - began_s)
    held.crop_to(num_tokens)
    return speed


@aside
@torch.inference_mode()
def _filled(model: PreTrainedModel, kind: str, ids: Sequence[int]) -> SessionCache:
    held = make_session_cache(model, kind)
    for start in range(0, len(ids), CHUNK_TOKENS):
        chunk = ids[start : start + CHUNK_TOKENS]
        model(torch.tensor([chunk], device=model.device), cache=held.cache, logits_to_keep=1)
        held.advance(chunk)
    held.settle()
    return held


@aside
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
