"""Rows: what a click costs once a chat is long, and what choosing tokens otherwise than greedily costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch

from bench.aside import aside
from bench.line import Line, Ratio
from bench.speed import NUM_NEW_TOKENS
from bench.subjects import greedy, settle
from bench.workbench import Workbench, new_owner
from chatcache.cache.kinds import make_session_cache
from chatcache.stats import Sampling

NEXT_MESSAGE = "And what does that say about the people of the island? Answer in one short sentence, please."
NUM_MESSAGE_TOKENS = 32
"""Of the message above with what the template puts around it, about."""

_ONE = greedy(1)


def measure_turns(bench: Workbench) -> Iterator[Line]:
    """Time to the first token of the next turn and of a regenerated reply, and the time of a roll back."""
    num_tokens = 512 if bench.is_quick else 4096
    forward_s = _forward_s(bench, num_tokens)
    with bench.service() as service:
        mine = service.for_owner(new_owner())
        session_id = mine.create_session().id
        mine.send(session_id, bench.prompt(num_tokens), _ONE).result()
        settle(mine)

        def step_s() -> float:
            sampling = greedy(NUM_NEW_TOKENS)
            speed = mine.regenerate(session_id, sampling=sampling).result().stats.decode_tokens_per_s
            settle(mine)
            return 1 / (speed or 1.0)

        def regenerate_s() -> float:
            stats = mine.regenerate(session_id, sampling=_ONE).result().stats
            settle(mine)
            return stats.ttft_s or 0.0

        def next_s() -> float:
            stats = mine.send(session_id, NEXT_MESSAGE, _ONE).result().stats
            settle(mine)
            return stats.ttft_s or 0.0

        def rollback_s() -> float:
            began_s = time.perf_counter()
            mine.rollback(session_id)
            return time.perf_counter() - began_s

        took = bench.alternate({"step": step_s, "regenerate": regenerate_s, "next": next_s, "rollback": rollback_s})
    at = f"at {num_tokens:,}"
    step, others = took["step"], {"one token": took["step"], "the forward alone": forward_s}
    allowed = forward_s + 1.2 * step
    yield Line(
        f"first token of the next turn {at}",
        "s",
        took["next"],
        others,
        (Ratio("forward + 1.2 tokens", took["next"] / allowed, at_most=1.0),),
    )
    yield Line(
        f"first token of another reply {at}",
        "s",
        took["regenerate"],
        {"one token": step},
        (Ratio("one token", took["regenerate"] / step, at_most=1.3),),
    )
    yield Line(f"roll back {at}", "s", took["rollback"])


def measure_sampling(bench: Workbench) -> Iterator[Line]:
    """What choosing tokens by the model's default sampling costs, against greedy."""
    with bench.ours() as ours:
        ours.read(bench.prompt(512))
        speeds = bench.alternate(
            {
                "greedy": partial(ours.write, NUM_NEW_TOKENS),
                "default": partial(ours.write, NUM_NEW_TOKENS, Sampling(seed=1, max_new_tokens=NUM_NEW_TOKENS)),
            }
        )
    ratio = Ratio("the time of a greedy token", speeds["greedy"] / speeds["default"], at_most=1.1)
    yield Line("decode at 512, default sampling", "tokens/s", speeds["default"], {"greedy": speeds["greedy"]}, (ratio,))


@aside
@torch.inference_mode()
def _forward_s(bench: Workbench, num_tokens: int) -> float:
    """How long the model itself takes for the tokens of the next message, after `num_tokens` others."""
    model = bench.model()
    held = make_session_cache(model, "dynamic")
    ids = bench.tokenizer.encode(bench.prompt(num_tokens + NUM_MESSAGE_TOKENS), add_special_tokens=False)
    for start in range(0, num_tokens, 256):
        chunk = ids[start : min(start + 256, num_tokens)]
        model(torch.tensor([chunk]), cache=held.cache, logits_to_keep=1)
        held.advance(chunk)
    message = ids[num_tokens:]

    def measure() -> float:
        began_s = time.perf_counter()
        model(torch.tensor([message]), cache=held.cache, logits_to_keep=1)
        took_s = time.perf_counter() - began_s
        held.advance(message)
        held.crop_to(num_tokens)
        return took_s

    return bench.alternate({"forward": measure})["forward"]
