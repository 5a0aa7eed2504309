"""`python -m chatcache.memory.plan`: what a model would take, before it is loaded, from its config.json alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from chatcache.cache.kinds import KINDS
from chatcache.config import EMBEDDED_MODEL
from chatcache.errors import ChatCacheError, InvalidInputError
from chatcache.memory.advice import Advice, advise
from chatcache.memory.available import UsableMemory, measure_usable_memory
from chatcache.memory.byte_sizes import parse_size
from chatcache.memory.model_config import load_model_config
from chatcache.memory.planner import KindPlan, MemoryPlan, PlanRequest, plan_memory
from chatcache.memory.rehearsal import DEVICE_TYPES, rehearse
from chatcache.model_options import resolve_device, resolve_dtype
from storage.byte_sizes import format_size


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan. 0: it fits, or no kind was asked for that does not; 1: it does not fit; 2: it cannot be made."""
    options = _parser().parse_args(arguments)
    try:
        plan, measured = _plan(options)
        kind = "dynamic" if options.cache == "auto" else options.cache
        advice = advise(plan, kind)
        text = _as_json(plan, kind, advice) if options.json else _as_text(plan, kind, advice, measured)
    except ChatCacheError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{text}\n")
    return 0 if plan.of(kind).fits else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chatcache.memory.plan", description=__doc__)
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="folder, config.json, .gguf file or hub id")
    parser.add_argument("--context", type=int, help="tokens per session; default: all that the model supports")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--cache", default="auto", choices=("auto", *KINDS), help="the kind to judge and advise on")
    parser.add_argument("--sessions", type=int, default=1, help="sessions that are live at once")
    parser.add_argument("--memory", help="what there is, such as 16GB; default: what is free now, less a reserve")
    parser.add_argument(
        "--device", default="auto", choices=("auto", *DEVICE_TYPES), help="what it runs on; default: what is here"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _plan(options: argparse.Namespace) -> tuple[MemoryPlan, UsableMemory | None]:
    device = resolve_device("auto")
    device_type = device.type if options.device == "auto" else options.device
    if device_type != device.type and options.memory is None:
        raise InvalidInputError(
            f"This machine's {device.type} says nothing of a {device_type}'s memory. Give --memory."
        )
    config = load_model_config(options.model)
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else None
    shape = rehearse(config, resolve_dtype(options.dtype, dtype, device), options.model)
    context = options.context if options.context is not None else shape.max_context_tokens
    if context is None:
        raise InvalidInputError(f"{options.model} has no limit of its own. Say how many tokens with --context.")
    measured = measure_usable_memory(device) if options.memory is None else None
    memory = parse_size(options.memory) if measured is None else measured.usable_bytes
    return plan_memory(shape, PlanRequest(context, options.sessions, memory, device_type=device_type)), measured


def _as_json(plan: MemoryPlan, kind: str, advice: Sequence[Advice]) -> str:
    values: dict[str, Any] = dataclasses.asdict(plan)
    return json.dumps(values | {"kind": kind, "advice": [dataclasses.asdict(a) for a in advice]}, indent=2)


def _as_text(plan: MemoryPlan, kind: str, advice: Sequence[Advice], measured: UsableMemory | None) -> str:
    shape, request = plan.shape, plan.request
    chosen = plan.of(kind)
    lines = [
        f"{shape.name} ({shape.architecture}, {shape.dtype}): {shape.num_parameters / 1e6:,.0f} million parameters",
        f"Weights    {format_size(shape.weight_bytes)}",
        f"Sessions   {request.num_sessions} of {request.context_tokens:,} tokens, read {plan.chunk_tokens} at a time",
        f"Memory     {_memory_line(request.memory_bytes or 0, measured)}",
        "",
        *_table(plan),
        "",
        _verdict(plan, chosen),
        *(f"  {number}. {a.text}{' It fits then.' if a.fits else ''}" for number, a in enumerate(advice, start=1)),
        *(f"Note: {note}" for note in _notes(plan)),
    ]
    return "\n".join(lines)


def _memory_line(memory_bytes: int, measured: UsableMemory | None) -> str:
    if measured is None:
        return format_size(memory_bytes)
    limit = f", limited by {measured.limited_by}" if measured.limited_by else ""
    return (
        f"{format_size(memory_bytes)} on {measured.device}: {format_size(measured.free_bytes)} free{limit}, "
        f"less a reserve of {format_size(measured.reserve_bytes)}"
    )


def _table(plan: MemoryPlan) -> list[str]:
    is_sliding = plan.shape.has_sliding_layers
    head = ["cache", "per token", "a session", *(["window only"] if is_sliding else []), "with room", "workspace"]
    rows = [[*head, "total", "fits", "context that fits"]]
    for p in plan.kinds:
        cache = p.cache
        windowed = [format_size(cache.windowed_bytes) if cache.windowed_bytes is not None else "–"]
        sizes = (p.workspace_bytes, p.total_bytes)
        rows.append(
            [
                cache.kind,
                format_size(cache.bytes_per_token),
                format_size(cache.used_bytes),
                *(windowed if is_sliding else []),
                format_size(cache.reserved_bytes),
                *(format_size(size) for size in sizes),
                *_verdict_cells(p),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _verdict_cells(plan: KindPlan) -> tuple[str, str]:
    if plan.refusal is not None:
        return "–", plan.refusal
    limit = "any" if plan.max_context_tokens is None else f"{plan.max_context_tokens:,}"
    return "yes" if plan.fits else "no", limit


def _verdict(plan: MemoryPlan, chosen: KindPlan) -> str:
    kind, memory = chosen.cache.kind, plan.request.memory_bytes or 0
    if chosen.refusal is not None:
        return f"The cache kind {kind} is not possible: {chosen.refusal}. {_verdict(plan, plan.of('dynamic'))}"
    if chosen.fits:
        return f"It fits with a {kind} cache; {format_size(memory - chosen.total_bytes)} are left."
    return f"It does not fit with a {kind} cache: {format_size(chosen.total_bytes - memory)} are missing."


def _notes(plan: MemoryPlan) -> list[str]:
    limit, context = plan.shape.max_context_tokens, plan.request.context_tokens
    notes = list(plan.shape.notes)
    if limit is not None and context > limit:
        notes.append(f"The model supports {limit:,} tokens of context, fewer than the {context:,} asked for.")
    offloaded = [p.cache for p in plan.kinds if p.cache.host_bytes and p.refusal is None]
    notes += [f"As {cache.kind}, a session takes {format_size(cache.host_bytes)} of RAM." for cache in offloaded]
    return notes


if __name__ == "__main__":
    raise SystemExit(main())
