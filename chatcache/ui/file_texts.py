"""The texts of chats as files, in English. Part of `texts.Texts`."""

from __future__ import annotations

from chatcache.ui.figures import Figures
from storage.transfer import ImportOutcome


class FileTexts(Figures):
    """English."""

    UNTITLED = "Untitled chat"
    NO_CHAT_FILE = "A chat’s file is one that was exported as JSON. Nothing was imported from it."

    def imported(self, title: str, outcome: ImportOutcome) -> str:
        name = f"“{title or self.UNTITLED}”"
        match outcome:
            case ImportOutcome.ADDED:
                return f"{name} was imported."
            case ImportOutcome.RESTORED:
                return f"{name} was in the bin and is back, as it was."
            case ImportOutcome.REPLACED:
                return f"{name} was imported; the chat that was here before is in the bin."
            case ImportOutcome.SKIPPED:
                return f"{name} is here already; nothing was changed."

    def imported_files(self, num_added: int, num_known: int, num_refused: int) -> str:
        known = f" {self.number(num_known)} {_were(num_known)} here already." if num_known else ""
        refused = f" {self.number(num_refused)} {_were(num_refused)} refused." if num_refused else ""
        total = self.number(num_added + num_known + num_refused)
        return f"{self.number(num_added)} of {total} chats {_were(num_added)} imported.{known}{refused}"

    def not_imported(self, file_name: str, reason: str) -> str:
        return f"“{file_name}”: {reason}"

    def file_too_large(self, most_bytes: int) -> str:
        return f"A chat’s file may have at most {self.size(most_bytes)}. Nothing was imported from it."


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
