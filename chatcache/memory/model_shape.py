"""What the planner knows of a model: sizes only. No tensor, file or configuration object is needed to use one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps of a session: for each token `num_heads` keys and values, and `state_bytes` once.

    A layer without attention has no heads; one without recurrence has no state. `itemsize` is that of a key element.
    """

    num_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    itemsize: int = 0
    sliding_window: int | None = None
    state_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """In full precision."""
        return self.num_heads * (self.key_dim + self.value_dim) * self.itemsize


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A causal language model in one dtype.

    `num_quantizable_parameters` are those of the matrices, the input embedding aside. `widest_projection` is the
    largest number of values a token takes inside a layer, between two projections. `has_eager_attention`: attention
    scores are computed as tensors rather than inside a kernel. Recurrent layers read `scan_chunk_tokens` at a time and
    make `scan_width` values for each; both 0 without such layers. `chunk_tokens`: how many prompt tokens the engine
    feeds at once at most, by the type of the device. `layer_types` are the library's names. `notes` are sentences for
    people.
    """

    name: str
    architecture: str
    dtype: str
    itemsize: int
    num_parameters: int
    num_quantizable_parameters: int
    weight_bytes: int
    layers: tuple[LayerShape, ...]
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    widest_projection: int
    has_eager_attention: bool = False
    scan_chunk_tokens: int = 0
    scan_width: int = 0
    max_context_tokens: int | None = None
    chunk_tokens: Mapping[str, int] = field(default_factory=dict)
    layer_types: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def attention_layers(self) -> tuple[LayerShape, ...]:
        return tuple(layer for layer in self.layers if layer.num_heads)

    @property
    def state_bytes(self) -> int:
        """Recurrent state of one session."""
        return sum(layer.state_bytes for layer in self.layers)

    @property
    def has_sliding_layers(self) -> bool:
        return any(layer.sliding_window is not None for layer in self.attention_layers)

    @property
    def query_heads_per_key(self) -> int:
        """How many query heads share a key; 1 is plain multi-head attention, and 1 stands for no attention too."""
        most_keys = max((layer.num_heads for layer in self.attention_layers), default=0)
        return max(self.num_attention_heads // most_keys, 1) if most_keys else 1
