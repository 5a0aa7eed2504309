"""What to do when a plan does not fit, in the order that helps: weights, context, cache, another model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from chatcache.memory.model_shape import ModelShape
from chatcache.memory.planner import KindPlan, MemoryPlan, plan_memory
from chatcache.told import Told
from storage.byte_sizes import format_size
from storage.sentence import Sentence

WEIGHT_BITS = {"int8": 8.0, "int4": 5.0}
"""Bits per quantized parameter, int4 with a scale and an offset of 16 bits for each group of 32."""
QUANTIZED_CACHES = ("quantized-int8", "quantized-int4")
"""The ones worth advising, in the order of what they cost in quality."""
GROUPED_QUERY_HEADS = 4
"""Query heads that share a key in the usual grouped-query model."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do. `total_bytes` is the bill after it, None where another model is the advice."""

    text: Sentence
    total_bytes: int | None
    fits: bool


def advise(plan: MemoryPlan, kind: str) -> tuple[Advice, ...]:
    """What helps, if `plan` does not fit in cache kind `kind`; nothing if it does, or if no memory was given.

    For a kind that the model cannot have, what would help the dynamic kind.
    """
    chosen, memory = plan.of(kind), plan.request.memory_bytes
    if chosen.refusal is not None:
        return advise(plan, "dynamic")
    if memory is None or chosen.fits:
        return ()
    advice = [_quantize_weights(plan, chosen, memory), _shorten_context(plan, chosen)]
    if kind not in QUANTIZED_CACHES:
        advice.append(_quantize_cache(plan))
    advice.append(_all_together(plan, kind, memory))
    advice.append(_choose_grouped_queries(plan))
    return tuple(a for a in advice if a is not None)


def weight_bytes_in(shape: ModelShape, form: str) -> int:
    """What the weights take with their matrices in `form`: "int8" or "int4"."""
    saved_bits = shape.itemsize * 8 - WEIGHT_BITS[form]
    return shape.weight_bytes - int(shape.num_quantizable_parameters * max(saved_bits, 0) / 8)


def _quantize_weights(plan: MemoryPlan, chosen: KindPlan, memory: int) -> Advice | None:
    if not plan.shape.num_quantizable_parameters:
        return None
    saved = {form: plan.shape.weight_bytes - weight_bytes_in(plan.shape, form) for form in WEIGHT_BITS}
    form = next((f for f in WEIGHT_BITS if chosen.total_bytes - saved[f] <= memory), "int4")
    total = chosen.total_bytes - saved[form]
    text = f"Quantize the weights: in {form} they take {format_size(saved[form])} less, {format_size(total)} in all."
    sentence = Sentence(text, Told.SMALLER_WEIGHTS, form=form, saved_bytes=saved[form], total_bytes=total)
    return Advice(sentence, total, total <= memory)


def _shorten_context(plan: MemoryPlan, chosen: KindPlan) -> Advice | None:
    num_tokens = chosen.max_context_tokens
    if not num_tokens or num_tokens >= plan.request.context_tokens:
        return None
    request = dataclasses.replace(plan.request, context_tokens=num_tokens)
    total = plan_memory(plan.shape, request).of(chosen.cache.kind).total_bytes
    text = f"Shorten the context: {num_tokens:,} tokens fit."
    return Advice(Sentence(text, Told.SHORTER_CONTEXT, num_tokens=num_tokens), total, True)


def _quantize_cache(plan: MemoryPlan) -> Advice | None:
    kinds = [p for p in map(plan.of, QUANTIZED_CACHES) if p.refusal is None]
    if not kinds:
        return None
    best = next((p for p in kinds if p.fits), kinds[-1])
    kind, used, total = best.cache.kind, best.cache.used_bytes, best.total_bytes
    text = f"Quantize the cache: as {kind} a session takes {format_size(used)}, {format_size(total)} in all."
    sentence = Sentence(text, Told.SMALLER_CACHE, kind=kind, session_bytes=used, total_bytes=total)
    return Advice(sentence, total, bool(best.fits))


def _all_together(plan: MemoryPlan, kind: str, memory: int) -> Advice | None:
    """Only when neither step is enough alone: smallest weights and smallest cache, and the context they leave."""
    kinds = [p for p in (plan.of(kind), *map(plan.of, QUANTIZED_CACHES)) if p.refusal is None]
    if any(p.fits for p in kinds) or not plan.shape.num_quantizable_parameters:
        return None
    shape = dataclasses.replace(plan.shape, weight_bytes=weight_bytes_in(plan.shape, "int4"))
    best = min(kinds, key=lambda p: p.total_bytes, default=None)
    if best is None or plan.of(kind).total_bytes - plan.shape.weight_bytes + shape.weight_bytes <= memory:
        return None
    both = plan_memory(shape, plan.request).of(best.cache.kind)
    kind, total, num_tokens = best.cache.kind, both.total_bytes, both.max_context_tokens or 0
    text = f"Weights in int4 and a {kind} cache together take {format_size(total)}"
    if both.fits:
        return Advice(Sentence(f"{text}.", Told.BOTH_SMALLER, kind=kind, total_bytes=total), total, True)
    text = f"{text}; with both, {num_tokens:,} tokens of context fit."
    shorter = Sentence(text, Told.BOTH_SMALLER_AND_SHORTER, kind=kind, total_bytes=total, num_tokens=num_tokens)
    return Advice(shorter, total, False)


def _choose_grouped_queries(plan: MemoryPlan) -> Advice | None:
    shape = plan.shape
    if not shape.attention_layers or shape.query_heads_per_key > 1 or shape.num_attention_heads < GROUPED_QUERY_HEADS:
        return None
    text = (
        "Choose a model with grouped-query attention: this one keeps a key and a value for every query head, "
        "such a one usually a quarter of them or fewer."
    )
    return Advice(Sentence(text, Told.GROUPED_QUERIES), None, False)
