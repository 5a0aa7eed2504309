"""What a service is opened with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chatcache.errors import InvalidInputError
from storage.data_dir import default_data_dir

EMBEDDED_MODEL = "smollm2-135m-instruct"
DEFAULT_DISK_QUOTA_BYTES = 10 * 2**30


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Everything a `ChatService` needs to know; see the README for the meaning of each.

    `model` is the embedded default's name, a local folder, a hub id or a `.gguf` file. None for `max_context_tokens`
    means what the model supports; None for `memory_budget_bytes` means measured free memory, less a reserve. What the
    model or the device must allow is checked when it is loaded. Raises InvalidInputError for impossible numbers.
    """

    model: str = EMBEDDED_MODEL
    data_dir: Path = field(default_factory=default_data_dir)
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"
    cache: str = "auto"
    max_context_tokens: int | None = None
    memory_budget_bytes: int | None = None
    disk_quota_bytes: int = DEFAULT_DISK_QUOTA_BYTES
    max_concurrent_turns: int = 2

    def __post_init__(self) -> None:
        for name, least in (("max_concurrent_turns", 1), ("disk_quota_bytes", 0), ("memory_budget_bytes", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidInputError(f"{name} must be at least {least}, not {value:,}.")
