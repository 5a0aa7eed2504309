"""What names a segment: hashes of the namespace, the tokens before it and its own. Pure, and the same in every process.

root = SHA256(canonical JSON of the namespace)
key  = SHA256("seg1" | parent key | start | number of tokens | token ids as u32le)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def namespace_root(namespace: Mapping[str, Any]) -> str:
    """The root of a namespace's keys, as hex digits. Two namespaces that differ in any value share no key."""
    canonical = json.dumps(namespace, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def segment_key(parent_key: str, start: int, token_ids: bytes) -> str:
    """The key of the segment whose ids (u32le) begin at token `start`, below `parent_key`. Hex digits."""
    num_tokens = len(token_ids) // 4
    numbers = start.to_bytes(4, "little") + num_tokens.to_bytes(4, "little")
    return hashlib.sha256(b"seg1" + bytes.fromhex(parent_key) + numbers + token_ids).hexdigest()
