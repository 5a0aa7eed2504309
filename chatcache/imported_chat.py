"""An imported chat, as far as it may be believed: its title fits a list, and ids that do not say what is shown go.

A file can claim anything about token ids. Ids that no reader saw as text must never be fed to the model, and ids that
the model does not have must never reach it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from chatcache.text_input import clean_title
from chatcache.told import Told
from storage.records import Message, Role
from storage.sentence import Sentence
from storage.transfer import ImportedChat

IDS_LEFT_OUT = Sentence(
    "The token ids of some replies are another model's or do not say what their text says. The text is kept, "
    "and is read anew when the chat goes on.",
    Told.IDS_LEFT_OUT,
)


def admit(
    chat: ImportedChat,
    *,
    ids_say: Callable[[Message], bool],
    problems_of: Callable[[Mapping[str, Any]], tuple[Sentence, ...]] = lambda _settings: (),
) -> ImportedChat:
    """The chat with a title of one line, and without the ids of replies for which `ids_say` does not hold. What
    `problems_of` finds in its settings is noted."""
    messages = tuple(
        dataclasses.replace(message, token_ids=None) if _has_ids(message) and not ids_say(message) else message
        for message in chat.tree.messages
    )
    session = dataclasses.replace(chat.tree.session, title=clean_title(chat.tree.session.title))
    notes = (*chat.notes, *problems_of(session.settings))
    if messages != chat.tree.messages:
        notes = (*notes, IDS_LEFT_OUT)
    return ImportedChat(dataclasses.replace(chat.tree, session=session, messages=messages), notes)


def _has_ids(message: Message) -> bool:
    return message.role is Role.ASSISTANT and message.token_ids is not None
