"""`Budget`: who holds how many bytes of the memory for live caches. Nothing is allocated that was not reserved here.

Plain bookkeeping: it knows keys and numbers, no cache, no device. Not thread-safe: used on the model thread only.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Need:
    """What one cache takes on the model's device. While a layer grows, changes its form or is unpacked, its old and its
    new tensors exist together: `largest_layer_bytes` have to stay free. `host_bytes` lie in RAM beside an accelerator.
    """

    num_bytes: int = 0
    largest_layer_bytes: int = 0
    host_bytes: int = 0

    def is_within(self, other: Need) -> bool:
        """Whether it takes no more than `other` of anything."""
        return (
            self.num_bytes <= other.num_bytes
            and self.largest_layer_bytes <= other.largest_layer_bytes
            and self.host_bytes <= other.host_bytes
        )

    def beside(self, other: Need) -> Need:
        """What both take together."""
        return Need(
            self.num_bytes + other.num_bytes,
            max(self.largest_layer_bytes, other.largest_layer_bytes),
            self.host_bytes + other.host_bytes,
        )


@dataclass(frozen=True, slots=True)
class IdleCache(Generic[Key]):
    """A cache that no turn is using."""

    key: Key
    need: Need


class Budget:
    """Reservations by key, together never above `limit_bytes`, one layer kept free, nor above `host_limit_bytes` in RAM
    beside an accelerator."""

    def __init__(self, limit_bytes: int, host_limit_bytes: int = sys.maxsize) -> None:
        self.limit_bytes = limit_bytes
        self.host_limit_bytes = host_limit_bytes
        self._held: dict[Hashable, Need] = {}

    @property
    def reserved_bytes(self) -> int:
        return sum(need.num_bytes for need in self._held.values())

    @property
    def free_layer_bytes(self) -> int:
        """What is kept free for a layer to change in."""
        return max((need.largest_layer_bytes for need in self._held.values()), default=0)

    @property
    def free_bytes(self) -> int:
        """What nobody has reserved, and no layer may need."""
        return max(0, self.limit_bytes - self.reserved_bytes - self.free_layer_bytes)

    @property
    def free_host_bytes(self) -> int:
        """Of RAM beside an accelerator, what nobody has reserved."""
        return max(0, self.host_limit_bytes - sum(need.host_bytes for need in self._held.values()))

    def held(self, key: Hashable) -> Need:
        """What `key` has reserved."""
        return self._held.get(key, Need())

    def fits(self, key: Hashable, need: Need, without: Collection[Hashable] = ()) -> bool:
        """Whether `key` could hold `need` instead of what it holds, once the keys in `without` hold nothing."""
        others = [held for other, held in self._held.items() if other != key and other not in without]
        together = functools.reduce(Need.beside, others, need)
        has_room = together.num_bytes + together.largest_layer_bytes <= self.limit_bytes
        return has_room and together.host_bytes <= self.host_limit_bytes

    def reserve(self, key: Hashable, need: Need) -> bool:
        """Let `key` hold `need` instead of what it holds; False, and nothing is changed, where it does not fit.

        Holding less than before always fits.
        """
        if not need.is_within(self.held(key)) and not self.fits(key, need):
            return False
        self._held[key] = need
        return True

    def hold(self, key: Hashable, need: Need) -> None:
        """`key` holds `need`, whether it fits or not: what exists counts."""
        self._held[key] = need

    def release(self, key: Hashable) -> None:
        """`key` holds nothing any more."""
        self._held.pop(key, None)


def choose_spills(budget: Budget, key: Hashable, need: Need, idle: Sequence[IdleCache[Key]]) -> tuple[Key, ...]:
    """Which of the `idle` caches (the least recently used first) must leave so that `key` can hold `need`.

    Nothing where it fits as it is, and nothing where it would not fit even without all of them: then they stay.
    """
    chosen: list[Key] = []
    for cache in idle:
        if budget.fits(key, need, without=chosen):
            break
        if cache.need != Need():
            chosen.append(cache.key)
    return tuple(chosen) if budget.fits(key, need, without=chosen) else ()
