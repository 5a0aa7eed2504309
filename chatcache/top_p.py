"""`QuickTopP`: what the library's `TopPLogitsWarper` gives, without sorting the whole vocabulary for each token."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessor, TopPLogitsWarper

_NUM_BEST = 256
_MARGIN = 1e-5
"""Far above what two orders of summing the same probabilities can differ by."""


class QuickTopP(LogitsProcessor):
    """Keeps the best tokens whose mass reaches `top_p`; the others get minus infinity.

    Looks at the best few hundred tokens; where these do not reach `top_p`, or rounding would decide which token is the
    last, the library's way decides. Of tokens that are exactly as good as the last one, which bfloat16 makes frequent,
    all are kept; the library keeps those that its sort happens to put first.
    """

    def __init__(self, top_p: float) -> None:
        self._top_p = top_p
        self._library = TopPLogitsWarper(top_p)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """`scores`: shape (1, vocabulary), fp32."""
        kept = self._kept(scores)
        if kept is None:
            limited = self._library(input_ids, scores)
            last = limited.masked_fill(limited.isneginf(), torch.inf).amin(dim=-1, keepdim=True)
            return cast(torch.FloatTensor, scores.masked_fill(scores < last, -torch.inf))
        few = torch.full_like(scores, -torch.inf).scatter_(1, kept, scores.gather(1, kept))
        return cast(torch.FloatTensor, few)

    def _kept(self, scores: torch.FloatTensor) -> Tensor | None:
        """Indices of the tokens that stay, shape (1, kept); None where a look at the best does not tell."""
        best, indices = scores.softmax(dim=-1).topk(min(_NUM_BEST, scores.shape[1]))
        above = best.cumsum(dim=-1) - best  # what is above each token, itself left out
        last = max(int((above < self._top_p).sum()), 1) - 1
        num_kept = int((best >= best[0, last]).sum())
        if num_kept == best.shape[1] or (above[0, last : last + 2] - self._top_p).abs().min() <= _MARGIN:
            return None
        return indices[:, :num_kept]
