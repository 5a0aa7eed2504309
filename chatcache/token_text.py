"""One tokenizer, both ways: text → ids where typed control tokens stay text, and id → the bytes it stands for.

Knows pieces, marks and bytes. Does not know chats, templates or replies. Safe to use from any thread.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

# Unicode noncharacters: no text a person means holds them, so removing them from input loses nothing.
MARK_START, MARK_END = "\ufdd0", "\ufdd1"
SENTINEL_START, SENTINEL_END = "\ufdd2", "\ufdd3"
_RESERVED = re.compile("[\ufdd0-\ufdd3]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHORS = ("\n", "a", ".", "0")
"""Characters that a piece is put behind so that it is encoded as text in the middle of a chat."""


class TokenText:
    """Encodes text with `tokenizer`, and tells which bytes an id stands for.

    `control_tokens` are the strings that have a meaning for the model; `visible_tokens` are those among the special
    ones that a reader shall see all the same (reasoning tags).
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, control_tokens: Iterable[str], visible_tokens: Iterable[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._lock = threading.RLock()  # fast tokenizers are not re-entrant
        longest_first = sorted(set(control_tokens), key=len, reverse=True)
        self._control_re = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._marked_re = re.compile(f"{MARK_START}({self._control_re.pattern}){MARK_END}|[{MARK_START}{MARK_END}]")
        added = tokenizer.added_tokens_decoder
        self._control_ids = {i for i, token in added.items() if token.content in set(longest_first)}
        self._added = {i: token.content for i, token in added.items()}
        self._hidden_ids = {i for i, t in added.items() if t.special and t.content not in set(visible_tokens)}
        decoder = _decoder_parts(self._backend)
        kinds = {part["type"] for part in decoder}
        self._is_byte_level = "ByteLevel" in kinds
        self._is_sentence_piece = not self._is_byte_level and bool(kinds & {"ByteFallback", "Metaspace"})
        self.num_stripped_spaces = sum(map(_num_stripped_spaces, decoder)) if self._is_sentence_piece else 0
        """How many spaces this tokenizer's decoder takes off the start of a text (SentencePiece's dummy prefix)."""
        self._bytes: dict[int, bytes] = {}
        self._anchors = [(anchor, self._plain(anchor)) for anchor in _ANCHORS]

    @property
    def knows_bytes(self) -> bool:
        """Whether `token_bytes` works; otherwise text has to be decoded by `decode`."""
        return self._is_byte_level or self._is_sentence_piece

    def clean(self, text: str) -> str:
        """`text` without the characters reserved for marks and sentinels."""
        return _RESERVED.sub("", text)

    def mark(self, text: str) -> str:
        """`text` cleaned, with marks around each control token that a person typed.

        The method of transformers' `mark_control_tokens`, on other marks: its U+F0001 is an icon in common fonts.
        """
        text = self.clean(text)
        marked, num_typed = self._control_re.subn(f"{MARK_START}\\g<0>{MARK_END}", text)
        normalizer = getattr(self._backend, "normalizer", None)
        if normalizer is not None and len(self._control_re.findall(normalizer.normalize_str(text))) > num_typed:
            # The tokenizer would turn look-alikes (full-width brackets) into a control token: break it up.
            marked = re.sub(r"(?<=[^\w\s])", MARK_END, text)
        return marked

    def count_tokens(self, text: str) -> int:
        """How many tokens `text` takes as a person's message, without what the template puts around it."""
        return len(self.encode(self.mark(text), at_start=False))

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Ids of rendered text; marked control tokens are encoded as ordinary text, the marks themselves never.

        `at_start`: the text opens the prompt. Anywhere else no leading space is added (SentencePiece's dummy prefix).
        """
        with self._lock:
            ids: list[int] = []
            # Splitting gives text, typed control token or None, text, …
            for i, piece in enumerate(self._marked_re.split(text)):
                if not piece:
                    continue
                if i % 2:
                    ids += self._encode_as_text(piece)
                else:
                    ids += self._plain(piece) if at_start and i == 0 else self._middle(piece)
            return ids

    def is_visible(self, token_id: int) -> bool:
        """Whether a reader sees the token: it is in the vocabulary and no control token."""
        if self.knows_bytes:
            return bool(self.token_bytes(token_id))
        return token_id < len(self._tokenizer) and token_id not in self._hidden_ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes `token_id` adds to a text; b"" for control tokens and ids that the tokenizer does not have."""
        if token_id not in self._bytes:
            self._bytes[token_id] = self._find_token_bytes(token_id)
        return self._bytes[token_id]

    def decode(self, token_ids: list[int]) -> str:
        """The tokenizer's own decoding, without control tokens."""
        with self._lock:
            shown = [i for i in token_ids if i not in self._hidden_ids]
            return str(self._tokenizer.decode(shown, skip_special_tokens=False))

    def _plain(self, text: str, *, split_special: bool = False) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split_special, verbose=False)
        return list(ids)

    def _middle(self, text: str, *, split_special: bool = False) -> list[int]:
        """Encode behind an anchor, then take the anchor off again; the next anchor where the two melt together."""
        for anchor, anchor_ids in self._anchors:
            ids = self._plain(anchor + text, split_special=split_special)
            if ids[: len(anchor_ids)] == anchor_ids:
                return ids[len(anchor_ids) :]
        return self._plain(text, split_special=split_special)

    def _encode_as_text(self, control_token: str) -> list[int]:
        """Ids that spell a control token. `split_special_tokens` leaves added tokens that are not special whole."""
        ids = self._middle(control_token, split_special=True)
        if self._control_ids.isdisjoint(ids):
            return ids
        return [i for character in control_token for i in self._middle(character, split_special=True)]

    def _find_token_bytes(self, token_id: int) -> bytes:
        if token_id in self._hidden_ids:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            known = all(character in _BYTE_OF_CHARACTER for character in token)
            return bytes(_BYTE_OF_CHARACTER[character] for character in token) if known else str(token).encode()
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte[1], 16)])
        return str(token).replace("▁", " ").encode()


def _decoder_parts(backend: Any) -> list[dict[str, Any]]:
    """The decoder of a fast tokenizer as a flat list of its parts; empty where there is none."""
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _num_stripped_spaces(part: dict[str, Any]) -> int:
    if part["type"] == "Strip" and part["content"] == " ":
        return int(part["start"])
    return int(part["type"] == "Metaspace" and part["prepend_scheme"] != "never")


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself, or one from U+0100 on (GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_level_alphabet()
