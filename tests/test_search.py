"""Search in titles and in what was said: what is found, in which order, by whom, and that nothing typed is an error."""

from __future__ import annotations

import shutil
import sqlite3
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from databases import open_database
from examples import examples, few_quick
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage.database
from storage import chat_search, text_index
from storage.chat_search import MOST_TERMS, ChatSearch, terms_of
from storage.chat_store import ChatStore
from storage.database import DATABASE_NAME, Database
from storage.errors import DatabaseError, DiskFullError
from storage.excerpt import Piece, excerpt_of, marked
from storage.folding import fold
from storage.migration import migration_config
from storage.models import EPOCH
from storage.records import BegunTurn, ChatSession, Message, MessageStatus, Role, SessionTree
from storage.text_index import DUE, TABLE, are_texts_due, searched_text

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
        ("Fox fox FOX", ("fox",)),
        ('""', ()),
        ('"', ()),
        ("   ", ()),
        ("a OR NOT b*", ("a", "or", "not", "b*")),
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


WORDS = st.text("abcxyzABC äÄéлЛıİIiß\u0301你好🙂'\"*-.", max_size=12)


@given(texts=st.lists(WORDS, min_size=1, max_size=4), query=WORDS)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
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


# Spellings

SAME = [
    ("İstanbul", "ISTANBUL", "istanbul", "ıstanbul", "I\u0307stanbul"),
    ("IŞIK", "ışık", "isik", "İŞİK"),
    ("Straße", "STRASSE", "strasse", "STRAẞE"),
    ("café", "cafe\u0301", "CAFÉ", "cafe"),
    ("Ὀδυσσεύς", "οδυσσευσ", "ΟΔΥΣΣΕΎΣ"),
    ("Ёлка", "елка"),
    ("한국어", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165"),
    ("ﬁnal", "FINAL", "ｆｉｎａｌ"),
    ("Việt Nam", '"viet nam"'),
]


@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[-1])
def test_one_word_is_found_in_all_its_spellings(store: ChatStore, spellings: tuple[str, ...]) -> None:
    for spelling in spellings:
        chat(store, "said", f"x{spelling.strip(chr(34))}x")
    chat(store, spellings[0])
    for spelling in spellings:
        assert found(store, spelling) == [spellings[0], *["said"] * len(spellings)], spelling


def test_what_sqlites_own_tokenizer_takes_for_one_latin_letter_is_one_here() -> None:
    letters = [chr(n) for n in range(0xC0, 0x250) if chr(n).isalpha()]
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='unicode61 remove_diacritics 2')")
    connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab(t, 'instance')")
    connection.executemany("INSERT INTO t(rowid, x) VALUES (?, ?)", [(ord(each), f"q{each}q") for each in letters])
    for seq, token in connection.execute("SELECT doc, term FROM v"):
        assert fold(f"q{chr(seq)}q") == fold(token), chr(seq)
    connection.close()


@given(st.text())
def test_folding_twice_is_folding_once_and_forgets_how_letters_are_composed(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert fold(unicodedata.normalize("NFC", text)) == fold(unicodedata.normalize("NFD", text)) == fold(text)


# Excerpts


def excerpt(store: ChatStore, query: str) -> list[tuple[str, list[str]]]:
    """Of every session found: the excerpt, and what is marked in it."""
    return [
        ("".join(piece.text for piece in each.excerpt), [piece.text for piece in each.excerpt if piece.is_hit])
        for each in store.search(ME, query)
    ]


def test_a_found_chat_shows_where_it_has_what_was_looked_for(store: ChatStore) -> None:
    chat(store, "a", "filler " * 100 + "the İSTANBUL ferry\n\nleaves at nine. " + "filler " * 100)
    ((shown, hits),) = excerpt(store, "istanbul nine")
    assert hits == ["İSTANBUL", "nine"]
    assert "the İSTANBUL ferry leaves at nine. filler" in shown
    assert (shown[0], shown[-1]) == ("…", "…")
    assert len(shown) < 200


def test_the_message_that_has_every_word_is_shown_before_a_newer_one_that_has_some(store: ChatStore) -> None:
    chat(store, "a", "red and green", "red alone")
    assert excerpt(store, "red green")[0][1] == ["red", "green"]
    assert excerpt(store, "red")[0] == ("re: red alone", ["red"]), "the newest that has it"


def test_a_found_chat_names_the_message_that_its_excerpt_is_from(store: ChatStore) -> None:
    session_id = chat(store, "a", "red and green", "red alone")
    branch = store.branch(ME, session_id)
    assert [each.message_id for each in store.search(ME, "red green")] == [branch[1].id]
    assert [each.message_id for each in store.search(ME, '"red alone"')] == [branch[3].id]


def test_a_replys_excerpt_has_its_words_without_the_marks_and_a_persons_own_is_as_written(store: ChatStore) -> None:
    chat(store, "a", "the **otter** asked")
    assert excerpt(store, "otter") == [("re: the otter asked", ["otter"])]
    assert excerpt(store, "re: **") == [("re: the **otter** asked", ["re:", "**", "**"])]
    begin(store, chat(store, "b", "one"), "a **heron**", None)
    assert excerpt(store, "heron") == [("a **heron**", ["heron"])]


def test_a_word_of_a_reply_is_found_as_a_reader_sees_it_whatever_part_of_it_is_bold(store: ChatStore) -> None:
    chat(store, "a", "a **mar**malade2 here")
    assert excerpt(store, "marmalade2") == [("re: a marmalade2 here", ["marmalade2"])]
    begin(store, chat(store, "b", "one"), "a **sea**weed3", None)
    assert excerpt(store, "seaweed3") == [], "a person's own text is shown as it is written"


def test_hits_in_the_title_are_marked_and_a_chat_may_have_no_excerpt(store: ChatStore) -> None:
    chat(store, "My Café", "nothing of it")
    (only,) = store.search(ME, "cafe")
    assert (only.title, only.excerpt) == ((Piece("My "), Piece("Café", is_hit=True)), ())
    assert only.message_id is None


TEXTS = st.text("abAB ıİIißéЁlΣς\u0301\u0307世\u05bc\u05b4\n", max_size=300)


@given(text=TEXTS, query=TEXTS)
def test_an_excerpt_is_a_part_of_the_text_and_marks_only_what_was_looked_for(text: str, query: str) -> None:
    terms = terms_of(query)
    pieces = excerpt_of(text, terms)
    shown = "".join(piece.text for piece in pieces).removeprefix("…").removesuffix("…")
    assert shown in unicodedata.normalize("NFC", " ".join(text.split()))
    assert all(any(term in fold(piece.text) for term in terms) for piece in pieces if piece.is_hit)
    assert "".join(piece.text for piece in marked(text, terms)) == text


# The index


def indexed(database: Database) -> list[str]:
    """The texts in the index, once it is up to date, as the index itself counts them."""
    ChatSearch(database).bring_index_up_to_date()
    with database.read() as db:
        rows = db.execute(sa.text(f"SELECT m.text FROM {TABLE}_docsize d LEFT JOIN messages m ON m.seq = d.id"))
        return sorted(row.text for row in rows)


def check(database: Database) -> None:
    """SQLite's own check, which raises, and that the index holds the messages as they are."""
    ChatSearch(database).bring_index_up_to_date()
    with database.write() as db:
        db.execute(sa.text(f"INSERT INTO {TABLE}({TABLE}) VALUES ('integrity-check')"))
        held = db.execute(
            sa.text(f"SELECT t.text, m.text, m.role FROM {TABLE} t LEFT JOIN messages m ON m.seq = t.rowid")
        )
        assert all(kept == searched_text(said, role) for kept, said, role in held)


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
    store.fork(ME, begun.reply.id)
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
        opened.append(open_database(tmp_path / "data"))
        return opened[-1]

    yield again
    opened[-1].close()


def test_a_database_of_the_revision_whose_triggers_wrote_the_index_is_indexed_anew(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / DATABASE_NAME}")
    config = migration_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        for statement in INDEX_OF_0003:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(
            "INSERT INTO sessions (id, owner, title, pinned, created_at, updated_at, version)"
            " VALUES ('s', 'me', 'Ferries', 0, '2025-01-01', '2025-01-01', 1)"
        )
        connection.exec_driver_sql(
            "INSERT INTO messages (id, session_id, owner, role, text, status, position, created_at, edited)"
            " VALUES ('m', 's', 'me', 'user', 'from İSTANBUL', 'complete', 0, '2025-01-01', 0)"
        )
    engine.dispose()
    with Database.open(tmp_path) as database:
        assert database.has_text_index
        assert found(ChatStore(database), "istanbul") == ["Ferries"]
        chat(ChatStore(database), "new", "to Istanbul")
        assert found(ChatStore(database), "ıstanbul") == ["new", "Ferries"]
        check(database)


def test_an_index_that_an_older_version_made_is_brought_up_to_date_once(tmp_path: Path) -> None:
    with open_database(tmp_path) as database:
        chat(ChatStore(database), "t", "an **im**portant word")
        assert found(ChatStore(database), "important") == ["t"]
    connection = sqlite3.connect(tmp_path / DATABASE_NAME)
    with connection:
        connection.execute(f"UPDATE {TABLE} SET text = 're: an **im**portant word'")  # as it said before
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    with open_database(tmp_path) as database:
        assert found(ChatStore(database), "important") == ["t"]
        check(database)
    with open_database(tmp_path) as database, database.read() as db:
        assert not are_texts_due(db.connection())


def test_a_full_disk_keeps_nobody_from_a_database_whose_index_an_older_version_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_database(tmp_path) as database:
        chat(ChatStore(database), "t", "a fox")
        assert found(ChatStore(database), "fox") == ["t"]
    connection = sqlite3.connect(tmp_path / DATABASE_NAME)
    names = [name for _, name, *_ in connection.execute("PRAGMA table_info(messages)") if name != "seq"]
    values = ", ".join("id || number" if name == "id" else name for name in names)
    with connection:
        connection.execute(
            "WITH RECURSIVE numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 2000)"
            f" INSERT INTO messages({', '.join(names)}) SELECT {values} FROM messages, numbers WHERE parent_id IS NULL"
        )
        connection.execute(f"DELETE FROM {DUE}")
        connection.execute("PRAGMA user_version = 0")
    connection.execute("VACUUM")  # so that what is due needs room that is not there
    connection.close()
    configure = storage.database.configure
    with monkeypatch.context() as patched:
        patched.setattr(
            storage.database, "configure", lambda engine, *pragmas: configure(engine, *pragmas, "max_page_count=1")
        )
        with open_database(tmp_path) as database:
            assert found(ChatStore(database), "fox") == ["t"]
    with open_database(tmp_path) as database:
        assert found(ChatStore(database), "fox") == ["t"]
        check(database)
        with database.read() as db:
            assert db.scalar(sa.text(f"SELECT count(*) FROM {TABLE}")) == 2002


INDEX_OF_0003 = (
    "CREATE VIRTUAL TABLE message_texts USING fts5(text, content='messages', content_rowid='seq', tokenize='trigram')",
    "CREATE TRIGGER message_texts_added AFTER INSERT ON messages WHEN new.status <> 'generating' BEGIN"
    " INSERT INTO message_texts(rowid, text) VALUES (new.seq, new.text); END",
    "CREATE TRIGGER message_texts_removed AFTER DELETE ON messages WHEN old.status <> 'generating' BEGIN"
    " INSERT INTO message_texts(message_texts, rowid, text) VALUES ('delete', old.seq, old.text); END",
    "CREATE TRIGGER message_texts_changed BEFORE UPDATE OF text, status ON messages WHEN old.status <> 'generating'"
    " BEGIN INSERT INTO message_texts(message_texts, rowid, text) VALUES ('delete', old.seq, old.text); END",
    "CREATE TRIGGER message_texts_changed_to AFTER UPDATE OF text, status ON messages WHEN new.status <> 'generating'"
    " BEGIN INSERT INTO message_texts(rowid, text) VALUES (new.seq, new.text); END",
)


DAMAGES = [
    f"UPDATE {TABLE}_data SET block = x'0102ffff00ffffff'",
    f"UPDATE {TABLE}_data SET block = zeroblob(1) WHERE id = 10",
    f"DELETE FROM {TABLE}_data",
    f"UPDATE {TABLE}_config SET v = 99",
    *(f"DROP TABLE {TABLE}_{shadow}" for shadow in ("data", "idx", "content", "docsize", "config")),
    f"DROP TABLE {TABLE}",
]


@pytest.fixture(scope="module")
def fifty_foxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a chat in it, to be copied."""
    folder = tmp_path_factory.mktemp("foxes")
    with open_database(folder) as database:
        chat(ChatStore(database), "before", *["a fox"] * 50)
    return folder / DATABASE_NAME


@pytest.mark.parametrize("is_opened_again", [False, True])
@pytest.mark.parametrize("damage", few_quick(DAMAGES, 4))
def test_with_a_damaged_index_every_message_is_stored_and_found_and_the_index_is_whole_again(
    reopen: Callable[[], Database], fifty_foxes: Path, tmp_path: Path, damage: str, *, is_opened_again: bool
) -> None:
    (tmp_path / "data").mkdir()
    shutil.copy(fifty_foxes, tmp_path / "data")
    database = reopen()
    found(ChatStore(database), "fox")
    with database.write() as db:
        db.execute(sa.text(damage))
    database = reopen() if is_opened_again else database
    store = ChatStore(database)
    chat(store, "meanwhile", "a new fox")
    store.purge(ME, store.delete(ME, chat(store, "gone", "a fox")).id)
    assert found(store, "new fox") == ["meanwhile"]
    assert found(store, "a fox") == ["meanwhile", "before"]
    assert database.has_text_index
    check(database)


def test_where_the_index_can_neither_be_used_nor_made_anew_the_texts_are_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ChatStore(database)
    chat(store, "a", "a fox")
    with database.write() as db:
        db.execute(sa.text(f"DROP TABLE {TABLE}_data"))

    def refused(_connection: sa.Connection) -> None:
        raise DatabaseError("The database could not be written.")

    monkeypatch.setattr(chat_search, "remake_text_index", refused)
    assert found(store, "fox") == ["a"]
    assert not database.has_text_index
    chat(store, "b", "another fox")
    assert found(store, "fox") == ["b", "a"]


def test_while_the_index_is_made_anew_messages_are_written(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChatStore(database)
    monkeypatch.setattr(text_index, "NUM_INDEXED_AT_ONCE", 2)
    chat(store, "a", "a fox", "two", "three", "four")
    assert found(store, "fox") == ["a"]
    with database.write() as db:
        db.execute(sa.text(f"DROP TABLE {TABLE}_data"))
    remake, are_due = chat_search.remake_text_index, chat_search.are_texts_due
    left_between: list[bool] = []

    def begin_to_remake(connection: sa.Connection) -> None:
        remake(connection)
        monkeypatch.setattr(chat_search, "are_texts_due", write_between)

    def write_between(connection: sa.Connection) -> bool:
        store.create_session(ME, title="", system_prompt=None, sampling={}, settings={}, template_vars={})
        left_between.append(are_due(connection))
        return left_between[-1]

    monkeypatch.setattr(chat_search, "remake_text_index", begin_to_remake)
    assert found(store, "fox") == ["a"]
    assert left_between == [True, True, True, True, False], "another writer comes after every two of the eight messages"
    check(database)


def test_a_disk_that_fills_up_while_the_index_is_made_anew_is_tried_again_at_the_next_search(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ChatStore(database)
    chat(store, "a", "a fox")
    with database.write() as db:
        db.execute(sa.text(f"DROP TABLE {TABLE}_data"))

    def refused(_connection: sa.Connection) -> None:
        raise DiskFullError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(chat_search, "remake_text_index", refused)
        assert found(store, "fox") == ["a"]
    assert database.has_text_index
    assert found(store, "fox") == ["a"]
    check(database)


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


@pytest.mark.parametrize("way", ["one", "the bin", "at the start"])
def test_what_a_chat_removed_for_good_said_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with open_database(tmp_path) as database:
        store = ChatStore(database)
        chat(store, "Kept", "Marmalade is kept")
        gone = chat(store, "Gone", "Zebulon the quixotrix")
        assert found(store, "quixotrix") == ["Gone"]
        assert found(store, "marmalade") == ["Kept"]
        store.delete(ME, gone)
        if way == "at the start":  # as the versions before left it
            monkeypatch.setattr(chat_search, "forget_removed_texts", lambda _connection: None)
        if way == "the bin":
            store.purge_bin(ME)
        else:
            store.purge(ME, gone)
    if way == "at the start":
        open_database(tmp_path).close()
    data = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).lower()
    assert b"marmalade" in data
    assert b"quixotrix" not in data


def test_a_damaged_index_keeps_nobody_from_removing_a_chat(database: Database) -> None:
    store = ChatStore(database)
    chat(store, "Kept", "Marmalade is kept")
    gone = chat(store, "Gone", "Marmalade is gone")
    assert len(found(store, "marmalade")) == 2
    with database.write() as db:
        db.execute(sa.text(f"UPDATE {TABLE}_data SET block = zeroblob(9)"))
    store.delete(ME, gone)
    store.purge(ME, gone)
    assert found(store, "marmalade") == ["Kept"]
