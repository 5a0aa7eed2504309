"""Chats as files: what is downloaded, and what becomes of files that are given to the page."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chatcache.errors import ChatCacheError
from chatcache.ui.handlers import Handlers, Refusal, Updates, said_if_refused
from chatcache.ui.layout import Page
from chatcache.ui.notice import Offer
from chatcache.ui.place import Place
from chatcache.ui.sent import from_json
from chatcache.ui.shelf import Shelf
from chatcache.ui.texts import Texts
from storage.transfer import ImportOutcome, ImportReport

if TYPE_CHECKING:
    from chatcache.chat import ChatService

MAX_FILE_BYTES = 32 * 2**20
MOST_WAITING = 16
"""So many times may files wait to replace what is here; the oldest are let go then."""


@dataclass(slots=True)
class _Imported:
    """What became of some files: the chats that came in, those that are here already, and sentences on all of it."""

    added: list[ImportReport] = field(default_factory=list)
    known: list[tuple[Path, ImportReport]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    num_refused: int = 0


class FileActions(Handlers):
    """The handlers of export and import, for any number of tabs."""

    def __init__(self, service: ChatService, page: Page, texts: Texts) -> None:
        super().__init__(service, page, texts)
        self._waiting: dict[str, list[Path]] = {}

    @said_if_refused
    def export(self, sent: object) -> Updates:
        return self._download(sent, "json", "application/json")

    @said_if_refused
    def export_markdown(self, sent: object) -> Updates:
        return self._download(sent, "markdown", "text/markdown")

    def _download(self, sent: object, form: Literal["json", "markdown"], media_type: str) -> Updates:
        session = self._service.get_session(self.session_at(Place.from_json(sent)))
        file = {
            "name": file_name(session.title, "json" if form == "json" else "md"),
            "type": media_type,
            "text": self._service.export(session.id, format=form),
            "at": time.time(),
        }
        return {self._page.exported: file}

    @said_if_refused
    def import_files(
        self, sent: object, sent_shelf: object, sent_unfit: object, paths: Sequence[str] | None = None
    ) -> Updates:
        """Take in exported chats. A single one is gone to; what is here already can be replaced by a further click.

        `sent_unfit` names files that were chosen, too, and that the page's script did not send.
        """
        files = [Path(path) for path in paths or ()]
        listed_anew = {self._page.shelf: Shelf.from_json(sent_shelf).again().to_json()}
        return self._import(Place.from_json(sent), files, self._refusals(sent_unfit), replace=False) | listed_anew

    def replace(self, place: Place, ticket: str) -> Updates:
        """Take in once more the files that were skipped because their chats are here, now in the place of these."""
        files = self._waiting.pop(ticket, [])
        if not files:
            raise Refusal(self._texts.FILES_GONE)
        return self._import(place, files, replace=True)

    def _refusals(self, sent_unfit: object) -> list[str]:
        """A sentence for each file that was not sent."""
        unfit, texts = from_json(sent_unfit), self._texts
        reasons = {"no_chat": texts.NO_CHAT_FILE, "too_large": texts.file_too_large(MAX_FILE_BYTES)}
        return [texts.not_imported(str(name), why) for key, why in reasons.items() for name in unfit.get(key) or ()]

    def _import(self, place: Place, files: Sequence[Path], refused: Sequence[str] = (), *, replace: bool) -> Updates:
        done = _Imported(said=[*refused], num_refused=len(refused))
        num_files = len(files) + len(refused)
        for file in files:
            self._import_one(file, done, replace=replace, is_alone=num_files == 1)
        if num_files > 1:
            counts = self._texts.imported_files(len(done.added), len(done.known), done.num_refused)
            done.said.insert(0, counts)
        reports = done.added + [report for _, report in done.known]
        # A tab may be under way still to where its address leads: this is one move further.
        place = place if place.has_arrived else place.at(None)
        moved = self.go(place, reports[0].session.id) if num_files == 1 and reports else {}
        is_error = bool(num_files) and done.num_refused == num_files
        return moved | self.notify("\n".join(done.said), is_error=is_error, offer=self._offer_replacing(done))

    def _import_one(self, file: Path, done: _Imported, *, replace: bool, is_alone: bool) -> None:
        """The copy in Gradio's folder is removed, unless it may be asked for again."""
        is_kept = False
        try:
            report = self._service.import_(_read(file, self._texts), replace=replace)
            if report.outcome in (ImportOutcome.SKIPPED, ImportOutcome.RESTORED):
                done.known.append((file, report))
                is_kept = True
            else:
                done.added.append(report)
            if is_alone or report.notes:
                sentence = self._texts.imported(report.session.title, report.outcome)
                done.said.append(" ".join((sentence, *map(self._texts.said, report.notes))))
        except ChatCacheError as error:
            done.num_refused += 1
            done.said.append(self._texts.not_imported(file.name, self.sentence(error)))
        finally:
            if not is_kept:
                file.unlink(missing_ok=True)

    def _offer_replacing(self, done: _Imported) -> Offer | None:
        if not done.known:
            return None
        ticket = secrets.token_hex(8)
        self._waiting[ticket] = [file for file, _ in done.known]
        while len(self._waiting) > MOST_WAITING:
            for file in self._waiting.pop(next(iter(self._waiting))):
                file.unlink(missing_ok=True)
        return Offer(self._texts.REPLACE, "replace", ticket)


def file_name(title: str, ending: str) -> str:
    """A name for an exported file that every system accepts."""
    words = re.sub(r"[^\w-]+", "-", title).strip("-_")[:60].strip("-_")
    return f"{words or 'chat'}.{ending}"


def _read(file: Path, texts: Texts) -> bytes:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise Refusal(texts.file_too_large(MAX_FILE_BYTES))
        return file.read_bytes()
    except OSError as error:
        raise Refusal(texts.FILES_GONE) from error
