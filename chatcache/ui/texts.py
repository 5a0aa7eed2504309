"""Every text of the page: `Texts` in English, and which language a browser gets.

The English names of controls are part of the product's surface (DESIGN section 11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from chatcache.errors import ChatCacheError
from chatcache.ui.chat_days import Span
from chatcache.ui.figures import unbroken
from chatcache.ui.file_texts import FileTexts
from chatcache.ui.panel_texts import PanelTexts
from chatcache.ui.starting_texts import StartingTexts
from chatcache.ui.turn_texts import TurnTexts
from chatcache.ui.writing_texts import WritingTexts


class Texts(PanelTexts, TurnTexts, WritingTexts, FileTexts, StartingTexts):
    """English. Another language is a subclass that says everything anew; a test holds it to that."""

    APP_NAME = "chatcache"
    SKIP_TO_MESSAGE = "Skip to the message box"

    MESSAGE = "Message"
    MESSAGE_PLACEHOLDER = "Write a message"
    SEND = "Send"
    STOP = "Stop"
    REGENERATE = "Regenerate"
    ROLL_BACK = "Roll back"
    FORWARD = "Forward"
    CONTINUE = "Continue"
    FORK = "Fork"
    FORK_BRIEFLY = "Fork"
    PREVIOUS_REPLY = "Previous reply"
    NEXT_REPLY = "Next reply"
    PREVIOUS_VERSION = "Previous version"
    NEXT_VERSION = "Next version"
    PREVIOUS_QUESTION = "Previous version of your message"
    NEXT_QUESTION = "Next version of your message"
    COPY = "Copy"
    COPY_CODE = "Copy code"
    UNDO = "Undo"
    DISMISS = "Dismiss"

    NEW_CHAT = "New chat"
    TEMPORARY_CHAT = "Temporary chat"
    NOT_STORED = "Not stored"
    TEMPORARY_DETAIL = (
        "Nothing of this chat is stored: it is in no list, and gone once you delete it or chatcache ends. "
        "Its address leads back to it until then."
    )
    GONE = "The temporary chat is gone; nothing of it was stored."
    TOGGLE_SIDEBAR = "Toggle Sidebar"
    SEARCH_CHATS = "Search chats"
    CHATS = "Chats"
    RENAME = "Rename"
    PIN = "Pin"
    UNPIN = "Unpin"
    DELETE = "Delete"
    EXPORT = "Export"
    EXPORT_MARKDOWN = "Export as Markdown"
    IMPORT = "Import"
    TITLE = "Title"
    SAVE_TITLE = "Save title"
    CANCEL = "Cancel"

    SPANS: ClassVar[Mapping[Span, str]] = {
        Span.PINNED: "Pinned",
        Span.TODAY: "Today",
        Span.YESTERDAY: "Yesterday",
        Span.WEEK: "Previous 7 days",
    }
    MONTHS: ClassVar[Sequence[str]] = (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
        "December",
    )  # fmt: skip

    OPENING = "Loading…"
    CONVERSATION = "Conversation"
    YOU = "You"
    MODEL = "Model"
    THINKING = "Thinking"
    THOUGHTS = "Thoughts"
    SHOW_EARLIER = "Show earlier messages"
    LEFT_OUT = "The context is full: the model no longer reads what stands above this line."
    EMPTY_REPLY = "The reply has no text."

    WELCOME = "What would you like to talk about?"
    WELCOME_DETAIL = "The model runs on this machine and keeps all it has read: each turn computes only what is new."

    NO_CHATS = "Chats you start appear here."
    SHOW_MORE = "Show more"
    IS_ANSWERED = "is being answered"
    BIN = "Bin"
    BACK_TO_CHATS = "Back to chats"
    BIN_EMPTY = "The bin is empty. What you delete waits here until you remove it for good."
    RESTORE = "Restore"
    PURGE = "Remove for good"
    KEEP = "Keep"
    EMPTY_BIN = "Empty the bin"
    EMPTY_BIN_QUESTION = "Remove every chat in the bin for good? This cannot be undone."

    CACHE = "Cache"
    CACHE_EMPTY = "Nothing is cached for this chat yet. The first message fills the cache."
    CACHE_IDLE = "No reply to report on yet."
    CACHE_ON_DISK = "This chat’s cache is on disk; the next turn fetches it and computes only what is new."
    CACHE_NOWHERE = (
        "A cache of this chat’s own is neither in memory nor on disk; the next turn takes what other chats share "
        "with it and reads the rest."
    )
    SHOW_DETAILS = "Details"
    REUSED = "reused"
    COMPUTED = "computed"

    STALE_PAGE = "This chat has moved on in another window. Nothing was changed; look at it and try again."
    UNKNOWN_SESSION = (
        "There is no chat at this address. Nothing was lost: your chats are in the list. Here is a fresh start."
    )
    NOT_BEGUN = "There is no chat here yet. Send a message to begin one."
    EMPTY_MESSAGE = "There is nothing to send yet. Write a message first."
    OFFLINE = "Connection lost. What was written is kept; this page goes on once chatcache can be reached again."
    NOTHING_TO_STOP = "The reply had already ended."
    FILES_GONE = "The file is no longer here. Choose it once more."
    REPLACE = "Replace"
    LOADING = "The model is being loaded. What you send is answered as soon as it is there."
    UNEXPECTED = (
        "Something went wrong in chatcache itself. Your text is kept; try again, and look at the log if it stays."
    )

    PROMPT_SUGGESTIONS = (
        "Explain what a key/value cache is, in three sentences.",
        "Write a short poem about the sea.",
        "Give me three ideas for a rainy Sunday.",
    )

    def no_match(self, query: str) -> str:
        return f"No chat matches “{query}”."

    def month(self, number: int, year: int | None) -> str:
        """`May`, or `May 2025` where it is not this year's."""
        return self.MONTHS[number - 1] + (f" {year}" if year else "")

    def bin(self, num_chats: int, *, are_more: bool) -> str:
        """The way to the bin, with how much is in it: `Bin (3)`, or `Bin (99+)` where there are more."""
        return f"{self.BIN} ({num_chats}{'+' if are_more else ''})" if num_chats else self.BIN

    def purge_question(self, title: str) -> str:
        return f"Remove “{title or self.UNTITLED}” for good? This cannot be undone."

    def purged(self, num_chats: int) -> str:
        return "1 chat was removed for good." if num_chats == 1 else f"{num_chats} chats were removed for good."

    def typed(self, num_typed: int, num_left: int | None) -> str:
        """`num_left`: None where it is not known."""
        if num_left is None:
            return f"{self.tokens(num_typed)} typed"
        if num_left < 0:
            return f"{self.tokens(num_typed)} typed, {self.number(-num_left)} more than the context has left"
        return f"{self.tokens(num_typed)} typed, {self.number(num_left)} left in the context"

    def alternative(self, number: int, total: int) -> str:
        return f"{number} of {total}"

    def deleted(self, title: str) -> str:
        return f"“{title or self.UNTITLED}” is in the bin."

    def forked(self, num_ready: int, num_tokens: int) -> str:
        """A chat has begun as a copy of `num_tokens` tokens, of which `num_ready` need not be read again."""
        said = "This is a new chat that goes on from there; the one it comes from is as it was."
        if num_ready >= num_tokens:
            return f"{said} All of its {self.tokens(num_tokens)} are reused; none has to be read again."
        num_left = self.number(num_tokens - num_ready)
        return f"{said} {self.number(num_ready)} of its {self.tokens(num_tokens)} are reused, {num_left} will be read."

    def said(self, sentence: str) -> str:
        """What the service tells. A language of its own says a `Sentence` in its own words."""
        return unbroken(sentence)

    def refused(self, error: ChatCacheError) -> str:
        """What an error of the service means to the person."""
        return unbroken(str(error))

    def refused_setting(self, name: str, error: ChatCacheError) -> str:
        """Why the setting of this name, which the error's message begins with, cannot be what was typed."""
        return f"{self.SETTING_NAMES[name]}{str(error).removeprefix(name)}"

    TTFT = "First token after"
    RESTORED_IN = "Fetched from disk in"
    SPEED = "Speed"
    WRITTEN = "Written by this turn"
    KIND = "Kind"
    IN_MEMORY = "In memory"
    ON_DISK = "On disk"
    CONTEXT = "Context"
    MODEL_NAME = "Model"
    NOTHING = "nothing"

    def budget_use(self, num_bytes: int, budget_bytes: int, num_chats: int) -> str:
        chats = f" in {self.number(num_chats)} chats" if num_chats > 1 else ""
        return f"{self.size(num_bytes)} of {self.size(budget_bytes)}{chats}"

    def context_use(self, num_used: int, num_max: int) -> str:
        return f"{self.number(num_used)} of {self.tokens(num_max)}" if num_used else f"up to {self.tokens(num_max)}"


ENGLISH = Texts()
