"""`ChunkSchedule`: how many prompt tokens one forward may take, so that Stop waits half a second at most.

A pure function of device, model size, position and what is left. It never looks at a clock: chunks of other sizes round
differently, and a reply must be the same when the same prompt is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

_CHUNK_S = 0.5
_SMALLEST, _LARGEST = 16, 4096

_FLOPS_PER_S = {"cpu": 3e11, "mps": 2e12, "cuda": 2e13}
"""What a prefill reaches on the slower machines of each kind. On two CPU cores the embedded model in bf16 takes 0.4 ms
per token at position 0, 0.6 at 1,024 and 1.1 at 4,096."""


@dataclass(frozen=True, slots=True)
class ChunkSchedule:
    """The cost of a prompt token on a device: a fixed part (all weights once) and one that grows with its position."""

    seconds_per_token: float
    seconds_per_token_and_position: float

    @classmethod
    def of(cls, model: PreTrainedModel, device_type: str | None = None) -> ChunkSchedule:
        """The schedule for a model, on the device it is on or on one of another type ("cpu", "cuda", …)."""
        flops_per_s = _FLOPS_PER_S.get(device_type or model.device.type, _FLOPS_PER_S["cpu"])
        config = model.config.get_text_config(decoder=True)
        embeddings = model.get_input_embeddings().parameters()
        num_weights = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in embeddings)
        width = getattr(config, "hidden_size", 0)
        num_layers = getattr(config, "num_hidden_layers", 0)
        return cls(2 * num_weights / flops_per_s, 4 * num_layers * width / flops_per_s)

    def num_tokens(self, position: int, num_left: int) -> int:
        """Tokens of the chunk that starts at `position`, where `num_left` are to come: a power of two; or all, where no
        more than a quarter is beyond it, for a few tokens take nearly as long as many."""
        chunk = self._power_of_two(position)
        return num_left if num_left <= chunk + chunk // 4 else chunk

    @property
    def most_tokens(self) -> int:
        """No chunk is larger."""
        chunk = self._power_of_two(0)
        return chunk + chunk // 4

    def _power_of_two(self, position: int) -> int:
        seconds_per_token = self.seconds_per_token + self.seconds_per_token_and_position * position
        num_tokens = _SMALLEST
        while num_tokens < _LARGEST and 2 * num_tokens * seconds_per_token <= _CHUNK_S:
            num_tokens *= 2
        return num_tokens
