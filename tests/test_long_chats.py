"""Long chats and many chats: what a page shows is read, and nothing else.

What SQLite does is counted in steps of its own machine: a number that no busy computer changes.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from statements import noted_statements

from storage.chat_store import ChatStore
from storage.database import Database
from storage.errors import InvalidRecordError, RowNotFoundError
from storage.models import EPOCH, SessionRow
from storage.records import ChatSession, Message, MessageStatus, Role, SessionTree, TurnRecord

ME = "me"
STEPS_PER_TICK = 20


@pytest.fixture
def store(database: Database) -> ChatStore:
    return ChatStore(database)


def session_of(name: str, **changes: Any) -> ChatSession:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[str, Any] = {
        "id": name, "owner": ME, "title": name, "system_prompt": None, "tip_id": None, "pinned": False, "sampling": {},
        "settings": {}, "template_vars": {}, "created_at": moment, "updated_at": moment, "deleted_at": None,
        "origin_id": None, "version": 1,
    }  # fmt: skip
    return ChatSession(**values | changes)


def long_chat(store: ChatStore, name: str, num_messages: int, *, num_turns: int = 0) -> str:
    """A chat of one branch; only the first `num_turns` replies have turns."""
    messages = tuple(
        Message(
            id=f"{name}-{n}",
            session_id=name,
            parent_id=f"{name}-{n - 1}" if n else None,
            role=(Role.USER, Role.ASSISTANT)[n % 2],
            text=f"message {n} " + "x" * 200,
            status=MessageStatus.COMPLETE,
            position=n,
            created_at=EPOCH,
            token_ids=tuple(range(50)) if n % 2 else None,
        )
        for n in range(num_messages)
    )
    turns = tuple(
        TurnRecord(
            id=f"{name}-t{n}", session_id=name, parent_id=f"{name}-{2 * n}", reply_id=f"{name}-{2 * n + 1}",
            request_id=None, sampling={}, settings={}, seed=n, context_start=0, created_at=EPOCH, finished_at=EPOCH,
        )
        for n in range(num_turns)
    )  # fmt: skip
    store.insert_tree(ME, SessionTree(session_of(name, tip_id=messages[-1].id), messages, turns))
    return name


def numbers(messages: tuple[Message, ...]) -> list[int]:
    return [message.position for message in messages]


@contextmanager
def counted_steps(database: Database) -> Iterator[Callable[[], int]]:
    """How many steps SQLite took since the block began, in ticks."""
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    def watch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(tick, STEPS_PER_TICK)

    sa.event.listen(database._engine, "checkout", watch)
    try:
        yield lambda: ticks
    finally:
        sa.event.remove(database._engine, "checkout", watch)


@contextmanager
def fewer_values(database: Database, most: int) -> Iterator[None]:
    """With a SQLite that takes no more than `most` values in one statement: it has such a limit always."""

    def limit(connection: Any, *_: Any) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, most)

    sa.event.listen(database._engine, "checkout", limit)
    try:
        yield
    finally:
        sa.event.remove(database._engine, "checkout", limit)


@pytest.mark.slow
def test_a_chat_of_more_messages_than_a_statement_takes_values_is_imported_forked_and_looked_at(
    database: Database, store: ChatStore
) -> None:
    with fewer_values(database, 1000):
        long_chat(store, "l", 2200, num_turns=1100)
        tree = store.tree(ME, "l")
        assert (len(tree.messages), len(tree.turns)) == (2200, 1100)
        assert len(store.latest_turns(ME, [m.id for m in tree.messages])) == 1100
        again, _ = store.replace_tree(ME, tree)
        copy = store.fork(ME, again.tip_id or "")
        assert len(store.tree(ME, copy.id).turns) == 1100
        assert numbers(store.branch(ME, copy.id)) == list(range(2200))


def steps_of(database: Database, read: Callable[[], object]) -> int:
    read()  # once before, so that the schema is known
    with counted_steps(database) as steps:
        read()
    return steps()


# A page of a branch


@pytest.mark.parametrize(
    ("limit", "before", "shown"),
    [
        (3, None, [7, 8, 9]),
        (None, None, list(range(10))),
        (100, None, list(range(10))),
        (1, None, [9]),
        (3, 7, [4, 5, 6]),
        (3, 2, [0, 1]),
        (3, 0, []),
        (None, 3, [0, 1, 2]),
    ],
)
def test_the_end_of_a_branch_is_read_in_order_or_what_stands_above_a_message(
    store: ChatStore, limit: int | None, before: int | None, shown: list[int]
) -> None:
    chat = long_chat(store, "c", 10)
    before_id = None if before is None else f"c-{before}"
    assert numbers(store.branch_end(ME, chat, limit, before_id)) == shown


def test_pages_put_together_are_the_branch_with_its_alternatives_counted(store: ChatStore) -> None:
    chat = long_chat(store, "c", 12)
    store.add_alternative(ME, "c-5", text="other", token_ids=None, tokenizer_digest="abc")
    store.set_tip(ME, chat, "c-11")
    pages: list[Message] = []
    before = None
    while page := store.branch_end(ME, chat, 5, before):
        pages[:0], before = page, page[0].id
    assert tuple(pages) == store.branch(ME, chat)
    assert pages[5].num_alternatives == 2
    assert store.branch_length(ME, chat) == 12


def test_how_far_up_a_message_stands_is_told_of_the_current_branch_of_its_own_chat(store: ChatStore) -> None:
    chat = long_chat(store, "c", 12)
    long_chat(store, "d", 4)
    other, _ = store.add_alternative(ME, "c-5", text="other", token_ids=None, tokenizer_digest="abc")
    assert [store.distance_from_tip(ME, chat, each) for each in (other.id, "c-0", "c-5", "c-11")] == [0, 5, None, None]
    store.set_tip(ME, chat, "c-11")
    assert [store.distance_from_tip(ME, chat, each) for each in (other.id, "c-0", "c-5", "c-11")] == [None, 11, 6, 0]
    store.set_tip(ME, chat, None)
    assert store.distance_from_tip(ME, chat, "c-0") is None
    with pytest.raises(InvalidRecordError):
        store.distance_from_tip(ME, chat, "d-1")
    for owner, message_id in (("other", "c-0"), (ME, "nothing")):
        with pytest.raises(RowNotFoundError):
            store.distance_from_tip(owner, chat, message_id)


def test_a_chat_without_messages_has_empty_pages(store: ChatStore) -> None:
    store.insert_tree(ME, SessionTree(session_of("empty"), (), ()))
    assert (store.branch_end(ME, "empty", 5), store.branch_length(ME, "empty")) == ((), 0)


def test_a_page_begins_in_the_same_chat_of_the_same_owner(store: ChatStore) -> None:
    long_chat(store, "c", 4)
    long_chat(store, "d", 4)
    with pytest.raises(InvalidRecordError):
        store.branch_end(ME, "c", 2, "d-1")
    for owner, chat, before in (("other", "c", None), (ME, "c", "nothing"), (ME, "nothing", None)):
        with pytest.raises(RowNotFoundError):
            store.branch_end(owner, chat, 2, before)
    with pytest.raises(RowNotFoundError):
        store.branch_length("other", "c")


def test_a_page_of_a_long_chat_takes_the_steps_of_a_short_one(store: ChatStore, database: Database) -> None:
    for name, length in (("short", 100), ("long", 1000)):
        long_chat(store, name, length, num_turns=length // 2)

    def page(name: str) -> None:
        messages = store.branch_end(ME, name, 40)
        assert len(messages) == 40
        store.branch_length(ME, name)
        store.latest_turns(ME, [message.id for message in messages])

    short, long = (steps_of(database, lambda name=name: page(name)) for name in ("short", "long"))  # type: ignore[misc]
    assert short > 10
    assert long <= 1.2 * short
    assert steps_of(database, lambda: store.branch(ME, "long")) > 5 * long, "the count sees what is read"


@pytest.mark.parametrize(("num_turns", "seed"), [(5, 4), (3, 2), (0, None)])
def test_the_last_turn_of_a_branch_is_that_of_the_nearest_reply_that_has_one(
    store: ChatStore, num_turns: int, seed: int | None
) -> None:
    long_chat(store, "c", 10, num_turns=num_turns)
    turn = store.last_turn(ME, "c-9")
    assert (None if turn is None else turn.seed) == seed
    with pytest.raises(RowNotFoundError):
        store.last_turn("other", "c-9")


# A list of chats


def many_chats(database: Database, num_chats: int, num_deleted: int = 0) -> None:
    """Rows alone: chats with a system prompt each, some pinned; all of an owner named by their number."""
    base = dataclasses.asdict(session_of("x", owner=f"{num_chats}", system_prompt="Be brief."))
    rows = [
        base
        | {
            "id": f"{num_chats}-{n}",
            "title": f"Chat {n}",
            "pinned": n % 500 == 7,
            "updated_at": base["updated_at"] + timedelta(minutes=n * 7919 % num_chats),
            "deleted_at": base["updated_at"] if n < num_deleted else None,
        }
        for n in range(num_chats + num_deleted)
    ]
    with database.write() as db:
        db.execute(sa.insert(SessionRow), rows)


def test_two_thousand_chats_are_listed_in_the_steps_of_fifty(store: ChatStore, database: Database) -> None:
    for num_chats in (50, 2000):
        many_chats(database, num_chats, num_deleted=30)
    few, many = (steps_of(database, lambda n=n: store.sessions(f"{n}", limit=50)) for n in (50, 2000))  # type: ignore[misc]
    assert few > 10
    assert many <= 1.1 * few
    bin_of_few, bin_of_many = (
        steps_of(database, lambda n=n: store.sessions(f"{n}", deleted=True))  # type: ignore[misc]
        for n in (50, 2000)
    )
    assert bin_of_many <= 1.1 * bin_of_few
    listed = store.sessions("2000", limit=50)
    assert [s.pinned for s in listed] == [True] * 4 + [False] * 46
    assert [s.updated_at for s in listed[4:]] == sorted((s.updated_at for s in listed[4:]), reverse=True)


def test_a_list_is_read_in_the_order_of_its_index(store: ChatStore, database: Database) -> None:
    with noted_statements() as statements:
        store.sessions(ME)
    statement, parameters = statements[-1]
    with database.read() as db:
        plan = db.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    assert [row[3] for row in plan] == [
        "SEARCH sessions USING INDEX ix_sessions_owner_deleted_at_pinned_updated_at_id (owner=? AND deleted_at=?)"
    ]


def test_a_word_is_looked_up_in_the_index_and_not_in_the_texts(store: ChatStore, database: Database) -> None:
    for n in range(40):
        long_chat(store, f"c{n}", 100)
    store.add_alternative(ME, "c3-7", text="a needle", token_ids=None, tokenizer_digest="abc")

    def search() -> None:
        assert [s.id for s in store.sessions(ME, query="needle")] == ["c3"]

    search()  # which brings the index up to date
    with_index = steps_of(database, search)
    database.has_text_index = False
    assert steps_of(database, search) > 10 * with_index
