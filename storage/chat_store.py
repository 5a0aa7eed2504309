"""`ChatStore`: sessions, messages and turns, read and written.

Every method takes the owner first and sees that owner's rows only: others' are reported as missing. Every method is
one transaction and may be called from any thread. Texts arrive cleaned. A change of a session, or of anything in it,
adds one to its `version`. Messages are added and never removed, short of `purge`; every one of them is reached by
`children` from None downwards. Temporary sessions lie in a database of their own: they are found by their ids alone, in
no list and no count.
"""

from __future__ import annotations

from storage.stored_messages import StoredMessages
from storage.stored_sessions import StoredSessions
from storage.stored_turns import StoredTurns


class ChatStore(StoredSessions, StoredMessages, StoredTurns):
    """See the module. Raises RowNotFoundError for unknown ids and others' rows, DatabaseError when the disk fails."""
