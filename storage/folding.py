"""One form for all that a person searching takes for the same: what is looked for and what is looked in both pass here.

Case goes, by Unicode's full folding (ß is ss, ς is σ), and the four letters I of Turkish are one. Composed and
decomposed letters are one, and so are compatible forms (ﬁ is fi, full-width letters are letters). Accents of Latin
letters go, as in SQLite's own tokenizer `unicode61`, and those of Greek and Cyrillic letters, too: é finds e, and e
finds é. Marks of other scripts stay: there they are letters.
"""

from __future__ import annotations

import re
import unicodedata

_ACCENTS = re.compile("[\u0300-\u036f]+")


def fold(text: str) -> str:
    """The folded text. What each character becomes does not depend on its neighbours, marks of other scripts aside."""
    if text.isascii():
        return text.lower()
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return plain.casefold().replace("ı", "i")
