"""Search in titles and in what was said: what is found, in which order, by whom, and that nothing typed is an error."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import text_index
from storage.chat_search import MOST_TERMS, terms_of
from storage.chat_store import ChatStore
from storage.database import Database
from storage.models import EPOCH
from storage.records import BegunTurn, ChatSession, Message, MessageStatus, Role, SessionTree
from storage.text_index import TABLE

ME, OTHER = "me", "somebody else"


@pytest.fixture(params=["index", "no index"])
def store(request: pytest.FixtureRequest, database: Database) -> ChatStore:
    """With the text index, and as it is where SQLite has none."""
    assert database.has_text_index
    database.has_text_index = request.param == "index"
    return ChatStore(database)


def chat(store: ChatStore, title: str, *said: str, owner: str = ME) -> str:
    session = store.create_session(owner, title=title, system_prompt=None, sampling={}, settings={}, template_vars={})
    tip = None
    for text in said:
        begun = begin(store, session.id, text, tip, owner)
        tip = begun.reply.id
        store.finish_turn(owner, begun.turn.id, text=f"re: {text}", reasoning=None, token_ids=None, stats={})
    return session.id


def begin(store: ChatStore, session_id: str, text: str, parent_id: str | None = None, owner: str = ME) -> BegunTurn:
    return store.begin_turn(
        owner,
        session_id,
        user_text=text,
        parent_id=parent_id,
        expected_tip=None,
        reply_to_continue=None,
        request_id=None,
        sampling={},
        settings={},
        seed=1,
        context_start=0,
        tokenizer_digest="abc",
    )


def found(store: ChatStore, query: str, *, deleted: bool = False, owner: str = ME) -> list[str]:
    return [session.title for session in store.sessions(owner, query=query, deleted=deleted)]


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("quick  brown\tfox", ("quick", "brown", "fox")),
        ('the "quick brown" fox', ("the", "quick brown", "fox")),
        ('the "quick bro', ("the", "quick bro")),
        ('say"hi"', ("say", "hi")),
        ("Fox fox FOX", ("FOX",)),
        ('""', ()),
        ('"', ()),
        ("   ", ()),
        ("a OR NOT b*", ("a", "OR", "NOT", "b*")),
    ],
)
def test_a_query_is_words_and_quoted_phrases(query: str, terms: tuple[str, ...]) -> None:
    assert terms_of(query) == terms


def test_a_pasted_page_is_cut_to_a_few_words() -> None:
    assert terms_of(" ".join(map(str, range(1000)))) == tuple(map(str, range(MOST_TERMS)))


def test_a_word_is_found_while_it_is_typed(store: ChatStore) -> None:
    chat(store, "Travel", "How high is Kathmandu?")
    chat(store, "xxxx", "yyyy zzzz")
    for end in range(1, len("Kathmandu") + 1):
        assert found(store, "Kathmandu"[:end]) == found(store, "kathmandu"[-end:]) == ["Travel"], end


FOUND = {
    "fox lazy": ["Animals"],
    "lazy fox": ["Animals"],
    '"lazy fox"': [],
    '"quick brown"': ["Animals"],
    "animals brown": ["Animals"],  # one word in the title, one in a message
    "fox cat": ["Animals"],  # in two messages
    "fox paris": [],
    "c++": ["Code"],
    "x_y": ["Code"],
    "100%": ["Code"],
    "%": ["Code"],
    "ÜBER": ["Über"],
    "世界": ["你好"],
    "好世界": ["你好"],
    "🙂": ["Über"],
}


def test_every_word_must_be_somewhere_in_the_chat(store: ChatStore) -> None:
    chat(store, "Animals", "The quick brown fox", "and the lazy cat")
    chat(store, "Code", "C++ has no x_y at 100%")
    chat(store, "Über", "nothing 🙂")
    chat(store, "你好", "你好世界，再见")
    assert {query: found(store, query) for query in FOUND} == FOUND


HOSTILE = [
    '"', "'", '""', "'\"", '"a', 'a"', "*", "a*", "^a", "a:b", "text:a", "NOT", "AND", "OR", "NEAR(a b)", "a AND", "(a",
    "a)", "-a", "+a", "{a}", "\\", "%", "_", "\\%", "[a-z]", "?", "?1", ":a", ";--", "a' OR '1'='1", "\x00", "\ud800",
    "a" * 1000, '"' * 999, "( " * 400, "a " * 500,
]  # fmt: skip


def test_nothing_that_can_be_typed_is_an_error(store: ChatStore) -> None:
    chat(store, "plain", "nothing special")
    for query in HOSTILE:
        query = query.encode("utf-8", "replace").decode()  # as the service cleans it
        assert found(store, query) in ([], ["plain"]), query


def test_titles_come_first_and_then_what_changed_last(store: ChatStore) -> None:
    titled = chat(store, "A fox")
    said_first = chat(store, "first", "a fox")
    chat(store, "second", "a fox")
    assert found(store, "fox") == ["A fox", "second", "first"]
    store.update_session(ME, said_first, pinned=True)
    assert found(store, "fox") == ["A fox", "first", "second"], "changed last; that it is pinned does not matter here"
    store.update_session(ME, titled, title="Nothing")
    assert found(store, "fox") == ["first", "second"]


def test_the_bin_is_searched_only_when_it_is_asked_for(store: ChatStore) -> None:
    binned = chat(store, "in the bin", "a fox")
    chat(store, "here", "a fox")
    store.delete(ME, binned)
    assert (found(store, "fox"), found(store, "fox", deleted=True)) == (["here"], ["in the bin"])


def test_nobody_finds_what_another_wrote(store: ChatStore) -> None:
    chat(store, "mine", "a fox of my own")
    chat(store, "theirs", "a fox, a secret", owner=OTHER)
    assert (found(store, "fox"), found(store, "secret")) == (["mine"], [])
    assert found(store, "fox", owner=OTHER) == ["theirs"]


WORDS = st.text("abcxyzABC äÄéлЛ你好🙂'\"*-.", max_size=12)


@given(texts=st.lists(WORDS, min_size=1, max_size=4), query=WORDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_is_found_with_the_index_and_without(database: Database, texts: list[str], query: str) -> None:
    store, owner = ChatStore(database), str(uuid.uuid4())
    ids = [str(uuid.uuid4()) for _ in texts]
    session = ChatSession(
        id=str(uuid.uuid4()), owner=owner, title="a chat", system_prompt=None, tip_id=None, pinned=False, sampling={},
        settings={}, template_vars={}, created_at=EPOCH, updated_at=EPOCH, deleted_at=None, origin_id=None, version=1,
    )  # fmt: skip
    messages = tuple(
        Message(own, session.id, above, role, text, MessageStatus.COMPLETE, position, EPOCH)
        for position, (own, above, role, text) in enumerate(
            zip(ids, [None, *ids], [Role.USER, Role.ASSISTANT] * 2, texts, strict=False)
        )
    )
    store.insert_tree(owner, SessionTree(session, messages, ()))
    database.has_text_index = True
    with_index = store.sessions(owner, query=query)
    database.has_text_index = False
    assert store.sessions(owner, query=query) == with_index


# The index


def indexed(database: Database) -> list[str]:
    """The texts in the index, as the index itself counts them."""
    with database.read() as db:
        rows = db.execute(sa.text(f"SELECT m.text FROM {TABLE}_docsize d LEFT JOIN messages m ON m.seq = d.id"))
        return sorted(row.text for row in rows)


def check(database: Database) -> None:
    """SQLite's own check: raises where the index and what it stands for differ."""
    with database.write() as db:
        db.execute(sa.text(f"INSERT INTO {TABLE}({TABLE}) VALUES ('integrity-check')"))


def test_the_index_follows_every_change(database: Database) -> None:
    store = ChatStore(database)
    session_id = chat(store, "t", "one")
    assert indexed(database) == ["one", "re: one"]
    tip = store.get_session(ME, session_id).tip_id
    begun = begin(store, session_id, "two", tip)
    store.save_partial(ME, begun.reply.id, text="half a rep", reasoning=None, token_ids=None)
    assert indexed(database) == ["one", "re: one", "two"], "a reply that grows is not indexed at every step"
    store.finish_turn(ME, begun.turn.id, text="whole", reasoning=None, token_ids=None, stats={})
    assert indexed(database) == ["one", "re: one", "two", "whole"]
    assert (found(store, "half"), found(store, "whole")) == ([], ["t"])
    store.add_alternative(ME, begun.reply.id, text="by hand", token_ids=None, tokenizer_digest="abc")
    store.fork(ME, begun.reply.id, title_suffix="")
    assert indexed(database).count("whole") == 2
    begun = begin(store, session_id, "three", store.get_session(ME, session_id).tip_id)
    store.save_partial(ME, begun.reply.id, text="cut off", reasoning=None, token_ids=None)
    store.mark_interrupted()
    assert found(store, "cut off") == ["t"]
    check(database)
    for session in store.sessions(ME):
        store.delete(ME, session.id)
        store.purge(ME, session.id)
    assert indexed(database) == []
    check(database)


def test_a_continued_reply_is_in_the_index_once(database: Database) -> None:
    store = ChatStore(database)
    session_id = chat(store, "t", "one")
    reply = store.branch(ME, session_id)[-1]
    begun = store.begin_turn(
        ME, session_id, user_text=None, parent_id=None, expected_tip=None, reply_to_continue=reply.id, request_id=None,
        sampling={}, settings={}, seed=1, context_start=0, tokenizer_digest="abc",
    )  # fmt: skip
    assert indexed(database) == ["one"]
    store.finish_turn(ME, begun.turn.id, text="re: one and more", reasoning=None, token_ids=None, stats={})
    assert indexed(database) == ["one", "re: one and more"]
    check(database)


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Callable[[], Database]]:
    opened: list[Database] = []

    def again() -> Database:
        for database in opened:
            database.close()
        opened.append(Database.open(tmp_path / "data"))
        return opened[-1]

    yield again
    opened[-1].close()


def test_a_database_from_before_the_index_is_indexed_when_it_is_opened(reopen: Callable[[], Database]) -> None:
    database = reopen()
    chat(ChatStore(database), "t", "a fox")
    with database.write() as db:
        for trigger in ("added", "removed", "changed", "changed_to"):
            db.execute(sa.text(f"DROP TRIGGER {TABLE}_{trigger}"))
        db.execute(sa.text(f"DROP TABLE {TABLE}"))
    database = reopen()
    assert database.has_text_index
    assert indexed(database) == ["a fox", "re: a fox"]
    assert found(ChatStore(database), "fox") == ["t"]


def test_chats_can_be_written_and_found_where_sqlite_has_no_such_index_and_are_indexed_later(
    reopen: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(ChatStore(reopen()), "before", "a fox")
    with monkeypatch.context() as patch:
        patch.setattr(text_index, "is_possible", lambda: False)
        database = reopen()
        assert not database.has_text_index
        chat(ChatStore(database), "meanwhile", "a fox")
        assert found(ChatStore(database), "fox") == ["meanwhile", "before"]
    database = reopen()
    assert database.has_text_index
    assert indexed(database) == ["a fox", "a fox", "re: a fox", "re: a fox"]
    chat(ChatStore(database), "after", "a fox")
    assert found(ChatStore(database), "fox") == ["after", "meanwhile", "before"]
    check(database)
