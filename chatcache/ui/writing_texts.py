"""The texts of editing, of the message box and of a reply's figures, in English. Part of `texts.Texts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from chatcache.stats import FinishReason


class WritingTexts:
    """English."""

    REGENERATE_THIS = "Regenerate this reply"
    EDIT = "Edit"
    EDIT_QUESTION = "Edit message"
    EDIT_REPLY = "Edit reply"
    EDIT_QUESTION_HINT = "A new branch begins here; what stands there now is kept."
    EDIT_REPLY_HINT = "A new version of the reply; the model reads it as its own. The old one is kept."
    ALL_ROLLED_BACK = "You went back to before the first message."
    REGENERATED_FURTHER_UP = (
        "The later turns are kept with the earlier version of this reply: the arrow ‹ below it leads back to them."
    )
    EDIT_MOVED = (
        "The message that you were editing is no longer shown here. Your text is in the message box; nothing was sent."
    )
    FOUND_IN_ANOTHER_VERSION = "What was found stands in another version of this chat. That version is shown now."
    FOUND_BESIDE_A_REPLY = (
        "What was found stands in another version of this chat. It can be shown once the present reply is written."
    )
    FOUND_IN_THE_BIN = "What was found stands in another version of the chat. Restoring the chat leads to it."
    MESSAGE_WAITS = (
        "A reply is still being written. Your message stays in the box: send it when that is done, or stop the reply."
    )
    SAVE = "Save"
    SAVE_AND_SEND = "Save and send"

    SHOW_ALL = "Show all of it"
    SHOW_LESS = "Show less"
    ATTACH = "Add text files"
    CHAT_MENU = "Chat menu"
    SHORTCUTS = "Keyboard shortcuts"
    CLOSE = "Close"
    KEY_SEND = "Send"
    KEY_NEW_LINE = "New line"
    KEY_EDIT_LAST_HERE = "Edit your last message, in an empty box"
    KEY_EDIT_LAST = "Edit your last message"
    KEY_STOP = "Stop; leave an editor"
    KEY_FOCUS = "Go to the message box"
    KEY_SAVE_EDIT = "Save an edit"
    KEY_LIST = "This list"

    PROMPT = "Read"
    REUSED_TOKENS = "Reused"
    COMPUTED_TOKENS = "Computed"
    GUESSED = "Guessed ahead"
    CACHE_KIND = "Cache kind"
    SEED = "Seed"
    SAMPLING = "Sampling"
    ENDED = "Ended"
    WRITTEN_AT = "Written at"

    FINISH_NAMES: ClassVar[Mapping[FinishReason, str]] = {
        FinishReason.STOP: "by itself",
        FinishReason.LENGTH: "at the longest reply allowed",
        FinishReason.CANCELLED: "stopped",
        FinishReason.CONTEXT_FULL: "context full",
        FinishReason.INTERRUPTED: "interrupted",
        FinishReason.ERROR: "by an error",
    }

    BUSY = "A reply is being written in this chat. Nothing was changed; stop it or wait, then try again."

    def rolled_back(self, num_turns: int, *, is_before_typed: bool) -> str:
        """So many turns are undone now, the one that was rolled back last among them. No longer for several than for
        one: a second line would move what is to stay under the pointer."""
        went = "one turn. Its text" if num_turns == 1 else f"{num_turns:,} turns. The first"
        where = ", before what you had typed" if is_before_typed else ""
        return f"Went back {went} is in the box{where}; nothing was thrown away."

    def lines(self, num_lines: int) -> str:
        return "1 line" if num_lines == 1 else f"{num_lines:,} lines"

    def text_file_too_large(self, name: str) -> str:
        return f"“{name}” is larger than 256\N{NO-BREAK SPACE}KiB, more than a message can hold. Nothing was added."

    def text_file_refused(self, name: str) -> str:
        return f"“{name}” is no text in UTF-8, so it cannot be added to a message."
