"""When two token sequences count as equal (DESIGN section 2): same ids, or a part at a tie that rounding decides."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel


def assert_equal_tokens(
    model: PreTrainedModel, prompt_ids: Sequence[int], reference: Sequence[int], other: Sequence[int]
) -> None:
    """`other` is what greedy decoding says after `prompt_ids` where `reference` was computed without a cache.

    They may part only where the reference's two best logits are closer than the chunk noise measured here: how far the
    logits of the same ids move when they are computed in chunks instead of at once.
    """
    num_common = next((i for i, (a, b) in enumerate(zip(reference, other, strict=False)) if a != b), None)
    if num_common is None:
        assert list(reference) == list(other), f"one of {list(reference)} and {list(other)} ends early"
        return
    ids = [*prompt_ids, *reference[:num_common]]
    logits, noise = _logits_and_noise(model, ids)
    first, second = logits.topk(2).values.tolist()
    assert first - second <= noise, (
        f"token {num_common} is {other[num_common]} instead of {reference[num_common]}, though the reference's lead of "
        f"{first - second:.2e} is above the chunk noise of {noise:.2e}"
    )


@torch.inference_mode()
def _logits_and_noise(model: PreTrainedModel, ids: Sequence[int]) -> tuple[torch.Tensor, float]:
    """The logits after `ids`, and how far they move when the ids are fed in chunks and the last one alone."""
    whole = torch.tensor([list(ids)], device=model.device)
    logits = model(input_ids=whole, use_cache=False).logits[0, -1].float()
    noise = 0.0
    for size in (7, 16, 64):
        cache = None
        for start in range(0, len(ids) - 1, size):
            piece = whole[:, start : min(start + size, len(ids) - 1)]
            cache = model(input_ids=piece, cache=cache, use_cache=True).cache
        chunked = model(input_ids=whole[:, -1:], cache=cache, use_cache=True).logits[0, -1].float()
        noise = max(noise, (logits - chunked).abs().max().item())
    return logits, noise
