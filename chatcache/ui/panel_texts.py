"""The texts of the right column, in English: settings, live figures, storage and memory plan. Part of `texts.Texts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from chatcache.stats import Limits
from chatcache.ui.chat_figures import Uncounted
from chatcache.ui.figures import Figures


class PanelTexts(Figures):
    """English."""

    SETTINGS = "Chat settings"
    SETTING_NAMES: ClassVar[Mapping[str, str]] = {
        "system_prompt": "System prompt",
        "temperature": "Temperature",
        "top_p": "Top-p",
        "top_k": "Top-k",
        "min_p": "Min-p",
        "repetition_penalty": "Repetition penalty",
        "max_new_tokens": "Max tokens",
        "seed": "Seed",
        "stop": "Stop strings",
        "cache": "Cache kind",
        "context_full": "When the context is full",
        "thinking": "Thinking",
        "prompt_lookup": "Prompt lookup",
    }
    SETTING_HINTS: ClassVar[Mapping[str, str]] = {
        "stop": "One per line. \\n stands for a line break.",
        "prompt_lookup": "Guesses from what was written before; quicker where text repeats itself.",
    }
    NO_SYSTEM_PROMPT = "None"
    NO_STOP_STRINGS = "None"
    SEED_DRAWN = "Drawn"
    CONTEXT_FULL_CHOICES: ClassVar[Mapping[str, str]] = {
        "drop-oldest": "Leave out the oldest turns",
        "stop": "Stop the reply",
    }
    AS_THE_MODEL = "As the model does"
    ON = "On"
    OFF = "Off"
    RESET_SETTINGS = "Reset to the model’s defaults"
    SETTINGS_RESET = "The model’s own defaults count from the next turn on. The system prompt stays."
    SETTINGS_SAVED = "Saved. It counts from the next turn on."
    SETTINGS_KEPT = "Kept. The chat begins with it."
    SETTINGS_REREAD = (
        "Saved. At the next turn the model reads this chat anew, for all of it stands below the system prompt."
    )
    SETTINGS_NEW_FORM = "Saved. At the next turn this chat’s cache takes its new form."
    SETTINGS_REFUSED = "What is marked was not saved."

    MEMORY = "Memory"
    THIS_CHAT = "This chat"
    RESERVED = "Reserved"
    FREE = "Free"
    USED = "Used"
    FRAME = "Around the next message"
    RESERVED_FOR_REPLY = "Kept free for the reply"
    MORE_IN_MEMORY = "Memory also keeps what you went back from: going forward again costs nothing."
    THIS_REPLY = "This reply"
    WRITING = "Writing…"
    SPEEDS = "Tokens per second"
    NOW = "now"
    AT_THE_END = "at the end"
    LAST_REPLY = "The last reply"
    PREFETCHED = "On opening"
    UNCOUNTED: ClassVar[Mapping[Uncounted, str]] = {
        Uncounted.BY_HAND: "It was written by hand: the model computed nothing for it.",
        Uncounted.INTERRUPTED: "It was interrupted, so what it cost was not counted.",
        Uncounted.NOTHING_READ: "It ended before the model had read anything.",
        Uncounted.UNKNOWN: "What it cost was not counted.",
    }
    BEGAN_SHARED = "A beginning that several chats share, such as the system prompt, is read once for all of them."

    STORAGE = "Storage"
    STORAGE_WAITS = "Looking…"
    STORAGE_EMPTY = "No chat has its cache on disk yet."
    OTHER_CACHES = "All others"
    SHARED = "Held by several chats, counted once"
    SET_ASIDE = "Damaged, set aside"
    DATABASE = "Chats and texts"
    HIT_RATE = "Fetched instead of computed"
    DROP_CACHE = "Drop cache"
    DROP_ALL = "Drop all caches"
    DROP_ALL_QUESTION = (
        "Drop every cache, in memory and on disk? No word of any chat is lost; each is read once more when it goes on."
    )
    DROP_BUSY = "A reply is being written in this chat. Stop it or wait, then drop its cache."
    VERIFY = "Verify"
    VERIFY_STARTS = "Checking…"
    IN_THE_BIN = "in the bin"

    PLAN = "Memory plan"
    PLAN_WAITS = "The plan is shown here once the model is loaded."
    PLAN_CONTEXT = "Context in tokens"
    PLAN_CHATS = "Chats at once"
    PLAN_KIND = "With cache kind"
    WEIGHTS = "Weights"
    WORKSPACE = "Workspace"
    TOTAL = "Total"
    FITS = "fits"
    FITS_NOT = "does not fit"
    PLAN_NOT_POSSIBLE = "Not possible here"
    PLAN_CURVES = "Bytes over context"
    PLAN_TABLE = "As a table"
    PLAN_ADVICE = "What would help"
    IT_FITS_THEN = "It fits then."

    IN_THIS_CHAT = "In this chat"
    WHAT_FIGURES_MEAN = "What the figures mean"
    MEANINGS: ClassVar[Mapping[str, str]] = {
        "REUSED_TOKENS": "What the model had read before, in this chat or another: it costs nothing.",
        "COMPUTED_TOKENS": "What the model had to read for this reply.",
        "IN_THIS_CHAT": "All turns of this chat, added up, also those of versions that are not shown; in a fork, those "
        "it came with, too. Seconds: as long as reading that much takes at the highest speed with which this chat was "
        "read, less fetching from disk.",
        "RESERVED": "Memory that is set aside for chats before they need it, so that no reply runs out of it half way.",
        "USED": "All that was read and written in this chat. The token that ends a reply is read with the next turn, "
        "so this can be one less than read and written together.",
        "FRAME": "What the next turn reads besides your words: the end of the last reply and what the model’s template "
        "puts around a message; in a new chat the system prompt, too.",
        "RESERVED_FOR_REPLY": "As much as the reply may take; “Max tokens” in the settings changes it.",
        "TTFT": "From your click to the first token of the reply.",
        "SPEED": "While writing; reading is not counted.",
        "WRITTEN": "All tokens that the model chose, the one that ends the reply among them.",
        "KIND": "How the cache is held: “dynamic” as the model computed it, the others in less memory and nearly as "
        "exact.",
        "IN_MEMORY": "What of this chat is in memory now. It can be more than the chat has: what you went back from is "
        "kept.",
        "DATABASE": "The file that holds what was said in all chats.",
        "SHARED": "What several chats have in common is stored once; no single chat gives it free.",
        "SET_ASIDE": "Files that were found damaged; what they held is computed again when it is needed.",
        "HIT_RATE": "Of the tokens that had left memory since the start of chatcache, those that came back from disk "
        "and were not computed again.",
    }
    """What is meant by figures, by the names of their texts."""

    def model_default(self, value: str) -> str:
        """A choice that leaves it to the service: `Automatic (dynamic)`."""
        return f"Automatic ({value})"

    def limits(self, limits: Limits) -> str:
        """Which numbers a setting takes: `0 to 2`, `1 or more`."""
        if limits.high is None:
            return f"{limits.low:g} or more"
        return f"{limits.low:g} to {limits.high:g}"

    def saved_in_chat(self, num_reused: int, num_total: int, saved_s: float | None) -> str:
        """`num_reused` of `num_total` tokens were not read again, which saved `saved_s` (None: nobody can say)."""
        share = self.share(self.percent(num_reused, num_total) / 100)
        reused = f"{self.tokens(num_reused)} ({share}) reused instead of read again"
        saved = f", about {self.seconds(saved_s)} saved" if saved_s is not None else ""
        return f"{self.IN_THIS_CHAT}: {reused}{saved}."

    def prefetched(self, num_tokens: int, seconds: float) -> str:
        return f"Resumed {self.tokens(num_tokens)} from disk in {self.seconds(seconds)}."

    def other_chats(self, num_chats: int) -> str:
        return "1 other chat" if num_chats == 1 else f"{self.number(num_chats)} other chats"

    def left_out_messages(self, num_messages: int) -> str:
        what = "message is" if num_messages == 1 else "messages are"
        return f"{self.number(num_messages)} older {what} left out."

    def quota_use(self, used_bytes: int, quota_bytes: int) -> str:
        return f"{self.size(used_bytes)} of {self.size(quota_bytes)}"

    def smaller_chats(self, num_chats: int) -> str:
        return "1 smaller chat" if num_chats == 1 else f"{self.number(num_chats)} smaller chats"

    def dropped(self, num_bytes: int, num_running: int = 0) -> str:
        said = f"Dropped; {self.size(num_bytes)} of the disk are free again. The text stays."
        if not num_running:
            return said
        chats = (
            "A chat that is being answered keeps its"
            if num_running == 1
            else "Chats that are being answered keep their"
        )
        return f"{said} {chats} cache in memory until the reply ends."

    def verifying(self, num_checked: int, num_files: int) -> str:
        return f"Checking file {self.number(min(num_checked + 1, num_files))} of {self.number(num_files)}…"

    def verified(self, num_files: int, num_bytes: int) -> str:
        files = "1 file" if num_files == 1 else f"{self.number(num_files)} files"
        return f"All is well: {files}, {self.size(num_bytes)}, each as it was written."

    def damaged(self, num_damaged: int, num_files: int) -> str:
        are = "is" if num_damaged == 1 else "are"
        return (
            f"{self.number(num_damaged)} of {self.number(num_files)} files {are} damaged. No text is lost: what they "
            "held is computed again when its chat goes on."
        )

    def verify_failed(self, reason: str) -> str:
        return f"The check could not be finished: {reason}"

    def plan_fits(self, kind: str, left_bytes: int) -> str:
        return f"It fits with a {kind} cache; {self.size(left_bytes)} are left."

    def plan_fits_not(self, kind: str, missing_bytes: int) -> str:
        return f"It does not fit with a {kind} cache: {self.size(missing_bytes)} are missing."

    def plan_memory(self, memory_bytes: int) -> str:
        return f"{self.size(memory_bytes)} may be used: the weights and the budget of the caches."

    def plan_up_to(self, num_tokens: int | None) -> str:
        if num_tokens is None:
            return "any context"
        return f"up to {self.tokens(num_tokens)}" if num_tokens else "no context at all"

    def speeds(self, lowest: float, highest: float) -> str:
        """`21.2 to 31.4`: of tokens per second."""
        digits = 1 if highest < 100 else 0
        return f"{self.number(lowest, digits)} to {self.number(highest, digits)}"

    def earlier(self, seconds: float) -> str:
        """Where an axis of time begins."""
        return f"{self.whole_seconds(seconds)} earlier"

    def curves_in_words(self, curves: Sequence[tuple[str, int]], num_tokens: int) -> str:
        """For who does not see the plot: each kind with its bytes at the longest context."""
        ends = ", ".join(f"{kind} {self.size(num_bytes)}" for kind, num_bytes in curves)
        return f"At {self.tokens(num_tokens)}: {ends}."
