"""Text files inside a message, as the page's composer wrote them there: their name, then their text between fences.

The model reads the message as it stands; people see a file with its name. What only looks like one stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FILE = re.compile(
    r"^(?P<name>[^\n`]{1,100})\n(?P<fence>`{3,})(?P<kind>[a-z0-9+#]{0,12})\n(?P<text>(?:.*\n)*?)(?P=fence)$",
    re.MULTILINE,
)
_ENDING = re.compile(r"\.([A-Za-z0-9+#]{1,12})$")


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """`kind` is the name's ending, in small letters; empty where it has none. `text` ends with a line break."""

    name: str
    kind: str
    text: str


def parts_of(message: str) -> Iterator[str | AttachedFile]:
    """What the person wrote and the files, in order. Text without anything to see between them is left out."""
    done = 0
    for match in _FILE.finditer(message):
        name, kind = match["name"], match["kind"]
        if not _is_file(name, kind):
            continue
        if written := message[done : match.start()].strip("\n"):
            yield written
        yield AttachedFile(name, kind, match["text"])
        done = match.end()
    if (written := message[done:].strip("\n")) or not done:
        yield written


def _is_file(name: str, kind: str) -> bool:
    """A person's own sentence above a fence is none: it has no ending that the fence repeats, and it has spaces."""
    ending = _ENDING.search(name)
    return ending[1].lower() == kind if ending else not kind and not re.search(r"[\s:]", name)
