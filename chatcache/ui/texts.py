"""Every text of the page, in English. The names of controls are part of the product's surface (DESIGN section 11)."""

from __future__ import annotations

from chatcache.events import Phase, StatusEvent
from chatcache.stats import FinishReason, MissReason
from storage.transfer import ImportOutcome

APP_NAME = "chatcache"
SKIP_TO_MESSAGE = "Skip to the message box"

MESSAGE = "Message"
MESSAGE_PLACEHOLDER = "Write a message"
SEND = "Send"
STOP = "Stop"
REGENERATE = "Regenerate"
ROLL_BACK = "Roll back"
CONTINUE = "Continue"
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
SEARCH_CHATS = "Search chats"
CHATS = "Chats"
RENAME = "Rename"
PIN = "Pin"
UNPIN = "Unpin"
DELETE = "Delete"
EXPORT = "Export"
IMPORT = "Import"
TITLE = "Title"
SAVE_TITLE = "Save title"
CANCEL = "Cancel"
UNTITLED = "Untitled chat"
PINNED = "pinned"

CONVERSATION = "Conversation"
YOU = "You"
MODEL = "Model"
THINKING = "Thinking"
THOUGHTS = "Thoughts"
SHOW_EARLIER = "Show earlier messages"
LEFT_OUT = "The context is full: the model no longer reads what stands above this line."
EMPTY_REPLY = "The reply has no text."

WELCOME = "What would you like to talk about?"
WELCOME_DETAIL = "It runs on this machine, and everything it reads is kept: each turn computes only what is new."

NO_CHATS = "Chats you start appear here."
MORE_CHATS = "Older chats are found by searching."

CACHE = "Cache"
CACHE_EMPTY = "Nothing is cached for this chat yet. The first message fills the cache."
CACHE_IDLE = "No reply to report on yet."
LAST_TURN = "The last turn that ended"
CACHE_ON_DISK = "This chat’s cache is on disk; the next turn fetches it and computes only what is new."
CACHE_NOWHERE = "This chat’s cache is neither in memory nor on disk; the next turn reads the chat once more."
SHOW_DETAILS = "Details"
REUSED = "reused"
COMPUTED = "computed"

STALE_PAGE = "This chat has moved on in another window. Nothing was changed; look at it and try again."
UNKNOWN_SESSION = (
    "There is no chat at this address. Nothing was lost: your chats are in the list. Here is a fresh start."
)
EMPTY_MESSAGE = "There is nothing to send yet. Write a message first."
OFFLINE = "Connection lost. What was written is kept; this page goes on once chatcache can be reached again."
NOTHING_TO_STOP = "The reply had already ended."
UNEXPECTED = "Something went wrong in chatcache itself. Your text is kept; try again, and look at the log if it stays."

PROMPT_SUGGESTIONS = (
    "Explain what a key/value cache is, in three sentences.",
    "Write a short poem about the sea.",
    "Give me three ideas for a rainy Sunday.",
)


def no_match(query: str) -> str:
    return f"No chat matches “{query}”."


def alternative(number: int, total: int) -> str:
    return f"{number} of {total}"


def deleted(title: str) -> str:
    return f"“{title or UNTITLED}” is in the bin."


def rolled_back() -> str:
    return "Went back one turn. Its text is in the box; nothing was thrown away."


def imported(title: str, outcome: ImportOutcome) -> str:
    name = f"“{title or UNTITLED}”"
    match outcome:
        case ImportOutcome.ADDED:
            return f"{name} was imported."
        case ImportOutcome.REPLACED:
            return f"{name} was imported; the chat that was here before is in the bin."
        case ImportOutcome.SKIPPED:
            return f"{name} is here already; nothing was changed."


def status(event: StatusEvent) -> str:
    """What a running turn is doing; empty once it writes, for then the text speaks."""
    progress = f" {event.done:,} of {event.total:,} tokens" if event.total else ""
    match event.phase:
        case Phase.QUEUED:
            return "Waiting for its turn…"
        case Phase.RESTORING:
            return f"Fetching the cache{progress}…"
        case Phase.PREFILL:
            return f"Reading{progress}…"
        case Phase.DECODE:
            return ""


FINISHED = {
    FinishReason.LENGTH: "Ended at the longest reply allowed. Continue goes on.",
    FinishReason.CANCELLED: "Stopped. Continue goes on from here.",
    FinishReason.CONTEXT_FULL: "The context is full. Everything is kept; start a new chat or roll back to go on.",
    FinishReason.INTERRUPTED: "Interrupted. What was written is kept; Continue goes on from here.",
    FinishReason.ERROR: "The reply broke off because of an error. What was written is kept; Regenerate tries again.",
}

SOURCES = {"live": "from memory", "disk": "from disk", "prefix": "from a shared beginning"}


def miss(reason: MissReason, index: int | None, *, num_reused: int, num_computed: int) -> str:
    """Why not all cached tokens were there or could be used, for people."""
    start = f" from token {index:,} on" if index else ""
    match reason:
        case MissReason.TEMPLATE:
            return f"The model’s template rewrote earlier text, so it was computed again{start}."
        case MissReason.NO_CACHE if num_reused:
            last = "the last token was" if num_computed == 1 else f"the last {num_computed:,} tokens were"
            return f"This chat’s cache was not in memory; {last} not stored yet and had to be computed."
        case MissReason.NO_CACHE:
            return "This chat had no cache in memory, so everything was read once more."
        case MissReason.HISTORY:
            return f"The conversation differs from what was cached{start}; the rest was computed."
        case MissReason.SMALLER_FORM:
            return f"There is memory again, so the cache was made anew in full precision{start}."
        case MissReason.CONTEXT:
            return (
                f"The chat outgrew the model’s memory, so its oldest turns were left out; the rest was computed{start}."
            )
        case MissReason.CACHE_KIND:
            return f"This chat’s cache is kept in another form now, so it was made anew{start}."
        case MissReason.NOT_CROPPABLE:
            return f"This model’s state cannot be cut back, so it was computed again{start}."
