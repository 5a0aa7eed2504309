"""ChatStore on real SQLite: what is written is read back, nothing is lost, and nobody sees another's."""

from __future__ import annotations

import dataclasses
import itertools
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from databases import open_database
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from statements import noted_statements

from storage.chat_store import ChatStore
from storage.database import DATABASE_NAME, Database
from storage.errors import InvalidRecordError, RowNotFoundError, StaleVersionError
from storage.records import BegunTurn, ChatSession, ExpectedTip, Message, MessageStatus, Role, SessionTree

ME, OTHER = "me", "somebody else"


@pytest.fixture
def store(database: Database) -> ChatStore:
    return ChatStore(database)


def new_session(store: ChatStore, title: str = "A chat", owner: str = ME) -> ChatSession:
    return store.create_session(
        owner,
        title=title,
        system_prompt="Be brief.",
        sampling={"temperature": 0.5},
        settings={"context": "stop"},
        template_vars={"date_string": "1 May 2025"},
    )


def begin(store: ChatStore, session_id: str, **changes: Any) -> BegunTurn:
    defaults: dict[str, Any] = {
        "user_text": None,
        "parent_id": None,
        "expected_tip": None,
        "reply_to_continue": None,
        "request_id": None,
        "sampling": {"top_k": 3},
        "settings": {"cache": "dynamic"},
        "seed": 2**63 - 1,
        "context_start": 0,
        "tokenizer_digest": "abc",
    }
    return store.begin_turn(ME, session_id, **defaults | changes)


def say(store: ChatStore, session_id: str, text: str, parent_id: str | None, reply: str | None = None) -> Message:
    """One whole turn: the user says `text`, the reply is `reply`. Returns the reply."""
    return finish(store, begin(store, session_id, user_text=text, parent_id=parent_id), reply or f"reply to {text}")


def regenerate(store: ChatStore, session_id: str, user_id: str | None, text: str) -> Message:
    return finish(store, begin(store, session_id, parent_id=user_id), text)


def finish(store: ChatStore, begun: BegunTurn, text: str) -> Message:
    message, _ = store.finish_turn(
        ME, begun.turn.id, text=text, reasoning=None, token_ids=[1, 2, 3], stats={"num_prompt_tokens": 7}
    )
    return message


def chat(store: ChatStore, *texts: str) -> tuple[str, list[Message]]:
    """A session in which each of `texts` was said and answered. Returns its id and the branch."""
    session_id = new_session(store).id
    tip: str | None = None
    for text in texts:
        tip = say(store, session_id, text, tip).id
    return session_id, list(store.branch(ME, session_id))


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


def run_sql(database: Database, statement: str, **values: Any) -> None:
    with database.write() as db:
        db.execute(sa.text(statement), values)


# Sessions


def test_a_new_session_reads_back_as_it_was_made(store: ChatStore) -> None:
    made = new_session(store, "Ünï 👩‍👩‍👧 title")
    assert store.get_session(ME, made.id) == made
    assert (made.version, made.tip_id, made.deleted_at) == (1, None, None)
    assert made.created_at.utcoffset() is not None
    assert store.branch(ME, made.id) == ()


def test_an_update_changes_what_is_named_and_counts_the_version(store: ChatStore) -> None:
    made = new_session(store)
    changed = store.update_session(ME, made.id, system_prompt=None, pinned=True)
    assert (changed.system_prompt, changed.pinned, changed.title) == (None, True, made.title)
    assert changed.version == made.version + 1
    assert changed.updated_at > made.updated_at
    assert store.get_session(ME, made.id) == changed


def test_pinned_sessions_come_first_and_then_the_most_recently_changed(store: ChatStore) -> None:
    first, second, third = (new_session(store, title) for title in ("first", "second", "third"))
    assert [s.title for s in store.sessions(ME)] == ["third", "second", "first"]
    say(store, first.id, "hello", None)
    assert [s.title for s in store.sessions(ME)] == ["first", "third", "second"]
    store.update_session(ME, second.id, pinned=True)
    store.update_session(ME, third.id, title="third")
    assert [s.title for s in store.sessions(ME)] == ["second", "third", "first"]
    assert [s.title for s in store.sessions(ME, limit=1, offset=1)] == ["third"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("TITLE", ["a title"]),
        ("100%", ["100% sure"]),
        ("0%s", []),
        ("snake_case", ["snake_case"]),
        ("snakeXcase", []),
        ("äpfel", ["Äpfel"]),
        ("a/b", ["a/b"]),
        ("said long ago", ["a title"]),
        ("reply to said", ["a title"]),
        ("'; DROP TABLE sessions; --", []),
        ("", ["a/b", "Äpfel", "snake_case", "100% sure", "a title"]),
    ],
)
def test_search_finds_titles_and_texts_and_takes_every_character_literally(
    store: ChatStore, query: str, found: list[str]
) -> None:
    say(store, new_session(store, "a title").id, "said long ago", None)
    for title in ("100% sure", "snake_case", "Äpfel", "a/b"):
        new_session(store, title)
    assert [s.title for s in store.sessions(ME, query=query)] == found


def test_search_finds_what_was_said_on_an_abandoned_branch(store: ChatStore) -> None:
    session_id, (user, *_) = chat(store, "hello")
    regenerate(store, session_id, user.id, "nothing of interest")
    assert [s.id for s in store.sessions(ME, query="reply to hello")] == [session_id]


def test_listing_sessions_takes_one_query_and_reads_no_message(store: ChatStore) -> None:
    for _ in range(3):
        chat(store, "a", "b")
    with noted_statements() as statements:
        assert len(store.sessions(ME)) == 3
    (statement,) = statements
    assert "messages" not in statement.text


def test_a_deleted_session_is_in_the_bin_with_all_it_had_until_it_is_purged(store: ChatStore) -> None:
    session_id, branch = chat(store, "one", "two")
    assert store.delete(ME, session_id).deleted_at is not None
    assert store.sessions(ME) == ()
    assert [s.id for s in store.sessions(ME, deleted=True)] == [session_id]
    assert list(store.branch(ME, session_id)) == branch
    store.undelete(ME, session_id)
    assert [s.id for s in store.sessions(ME)] == [session_id]

    with pytest.raises(InvalidRecordError, match="delete it first"):
        store.purge(ME, session_id)
    store.delete(ME, session_id)
    store.purge(ME, session_id)
    for read in (lambda: store.get_session(ME, session_id), lambda: store.get_message(ME, branch[0].id)):
        with pytest.raises(RowNotFoundError):
            read()


def test_a_purge_removes_the_rows_of_that_session_only(store: ChatStore, tmp_path: Path) -> None:
    kept, _ = chat(store, "keep me")
    gone, branch = chat(store, "a", "b")
    regenerate(store, gone, branch[0].id, "other")
    store.delete(ME, gone)
    store.purge(ME, gone)
    connection = sqlite3.connect(tmp_path / DATABASE_NAME)
    for table in ("messages", "turns"):
        assert connection.execute(f"SELECT DISTINCT session_id FROM {table}").fetchall() == [(kept,)]
    connection.close()


# Turns


def test_a_turn_begins_with_the_user_row_and_an_empty_reply_that_is_the_tip(store: ChatStore) -> None:
    session = new_session(store)
    begun = begin(store, session.id, user_text="hello", request_id="click", context_start=0)
    assert begun.user is not None
    assert (begun.user.text, begun.user.role, begun.user.position, begun.user.parent_id) == (
        "hello",
        Role.USER,
        0,
        None,
    )
    assert (begun.reply.text, begun.reply.status, begun.reply.token_ids) == ("", MessageStatus.GENERATING, ())
    assert (begun.reply.position, begun.reply.parent_id) == (1, begun.user.id)
    assert begun.session.tip_id == begun.reply.id
    assert begun.session.version == session.version + 1
    assert store.get_session(ME, session.id) == begun.session
    assert store.find_turn_by_request(ME, session.id, "click") == begun.turn
    assert store.find_turn_by_request(ME, session.id, "another") is None
    assert begun.turn.seed == 2**63 - 1
    assert (begun.turn.finished_at, begun.turn.stats) == (None, {})


def test_a_finished_turn_reads_back_with_text_ids_and_stats(store: ChatStore) -> None:
    session = new_session(store)
    begun = begin(store, session.id, user_text="hello", context_start=0)
    ids = [0, 1, 49_151, 2**32 - 1]
    message, changed = store.finish_turn(
        ME, begun.turn.id, text="Hi 👋🏽", reasoning="hm", token_ids=ids, stats={"seed": 3, "reuse": [["live", 4]]}
    )
    assert message == store.get_message(ME, begun.reply.id)
    assert (message.text, message.reasoning, message.token_ids) == ("Hi 👋🏽", "hm", tuple(ids))
    assert (message.status, message.tokenizer_digest) == (MessageStatus.COMPLETE, "abc")
    assert changed.version == begun.session.version + 1
    (turn,) = store.turns(ME, message.id)
    assert turn.stats == {"seed": 3, "reuse": [["live", 4]]}
    assert turn.finished_at is not None
    with pytest.raises(InvalidRecordError, match="finished already"):
        store.finish_turn(ME, begun.turn.id, text="again", reasoning=None, token_ids=[], stats={})


def test_partial_text_is_saved_without_a_new_version_and_only_while_the_reply_is_written(store: ChatStore) -> None:
    session = new_session(store)
    begun = begin(store, session.id, user_text="hello")
    store.save_partial(ME, begun.reply.id, text="Hel", reasoning=None, token_ids=[5])
    saved = store.get_message(ME, begun.reply.id)
    assert (saved.text, saved.token_ids, saved.status) == ("Hel", (5,), MessageStatus.GENERATING)
    assert store.get_session(ME, session.id).version == begun.session.version
    finish(store, begun, "Hello")
    with pytest.raises(InvalidRecordError, match="not being written"):
        store.save_partial(ME, begun.reply.id, text="late", reasoning=None, token_ids=[])
    assert store.get_message(ME, begun.reply.id).text == "Hello"


def test_a_turn_on_another_tip_than_the_expected_one_is_refused_and_writes_nothing(store: ChatStore) -> None:
    session_id, branch = chat(store, "one")
    before = store.tree(ME, session_id)
    for expected in (ExpectedTip(None), ExpectedTip(branch[0].id)):
        with pytest.raises(StaleVersionError):
            begin(store, session_id, user_text="two", parent_id=branch[-1].id, expected_tip=expected)
    assert store.tree(ME, session_id) == before
    begin(store, session_id, user_text="two", parent_id=branch[-1].id, expected_tip=ExpectedTip(branch[-1].id))


def test_a_turn_that_would_break_the_order_of_roles_is_refused_and_writes_nothing(store: ChatStore) -> None:
    session_id, (user, reply) = chat(store, "one")
    _, (foreign_user, foreign_reply) = chat(store, "elsewhere")
    before = store.tree(ME, session_id)
    for wrong in (
        {"user_text": "after a user", "parent_id": user.id},
        {"parent_id": reply.id},
        {"parent_id": None},
        {"reply_to_continue": user.id},
        {"reply_to_continue": reply.id, "user_text": "and this"},
        {"user_text": "on another session's reply", "parent_id": foreign_reply.id},
        {"parent_id": foreign_user.id},
        {"reply_to_continue": foreign_reply.id},
    ):
        with pytest.raises(InvalidRecordError):
            begin(store, session_id, **wrong)
    assert store.tree(ME, session_id) == before


def test_nothing_can_be_said_under_a_reply_that_is_still_being_written(store: ChatStore) -> None:
    session = new_session(store)
    begun = begin(store, session.id, user_text="one")
    for change in ({"user_text": "two", "parent_id": begun.reply.id}, {"reply_to_continue": begun.reply.id}):
        with pytest.raises(InvalidRecordError, match="still being written"):
            begin(store, session.id, **change)


def test_a_request_begins_one_turn_however_often_it_is_sent(store: ChatStore) -> None:
    session = new_session(store)
    outcomes: list[str] = []

    def click() -> None:
        try:
            outcomes.append(begin(store, session.id, user_text="once", request_id="r").turn.id)
        except InvalidRecordError:
            outcomes.append("refused")

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("refused") == 3
    assert len(store.tree(ME, session.id).messages) == 2
    begin(store, new_session(store).id, user_text="in another session", request_id="r")


def test_a_childless_reply_is_continued_by_a_second_turn(store: ChatStore) -> None:
    session_id, (user, reply) = chat(store, "one")
    begun = begin(store, session_id, reply_to_continue=reply.id)
    assert begun.user is None
    assert (begun.reply.id, begun.reply.text, begun.reply.token_ids) == (reply.id, reply.text, (1, 2, 3))
    assert begun.reply.status is MessageStatus.GENERATING
    assert begun.turn.parent_id == user.id
    finish(store, begun, "more")
    first, second = store.turns(ME, reply.id)
    assert second.id == begun.turn.id
    assert first.created_at <= second.created_at
    assert store.latest_turns(ME, [reply.id, user.id])[reply.id].id == second.id


def test_a_reply_that_was_answered_cannot_be_continued(store: ChatStore) -> None:
    session_id, branch = chat(store, "one", "two")
    with pytest.raises(InvalidRecordError, match="answered"):
        begin(store, session_id, reply_to_continue=branch[1].id)


def test_ids_of_another_tokenizer_are_dropped_when_a_reply_is_continued(store: ChatStore) -> None:
    session_id, (_, reply) = chat(store, "one")
    begun = begin(store, session_id, reply_to_continue=reply.id, tokenizer_digest="another")
    assert (begun.reply.text, begun.reply.token_ids, begun.reply.tokenizer_digest) == (reply.text, None, "another")


def test_the_latest_turns_of_many_replies_are_read_in_one_query(store: ChatStore) -> None:
    session_id, branch = chat(store, "one", "two")
    replies = [m.id for m in branch if m.role is Role.ASSISTANT]
    finish(store, begin(store, session_id, reply_to_continue=replies[-1]), "more")
    latest = store.latest_turns(ME, replies)
    assert latest == {reply: store.turns(ME, reply)[-1] for reply in replies}
    assert store.latest_turns(ME, []) == {}


def test_what_a_dead_process_left_is_marked_interrupted_and_its_text_kept(store: ChatStore) -> None:
    session_id, _ = chat(store, "done")
    broken = new_session(store)
    begun = begin(store, broken.id, user_text="hello")
    store.save_partial(ME, begun.reply.id, text="Hel", reasoning="r", token_ids=[5])
    untouched = store.get_session(ME, session_id)

    assert store.mark_interrupted() == 1
    assert store.mark_interrupted() == 0
    message = store.get_message(ME, begun.reply.id)
    assert (message.status, message.text, message.token_ids) == (MessageStatus.INTERRUPTED, "Hel", (5,))
    (turn,) = store.turns(ME, message.id)
    assert turn.stats == {"finish_reason": "interrupted"}
    assert turn.finished_at is not None
    assert store.get_session(ME, broken.id).version == begun.session.version + 1
    assert store.get_session(ME, session_id) == untouched

    finish(store, begin(store, broken.id, reply_to_continue=message.id), "Hello")
    assert store.get_message(ME, message.id).status is MessageStatus.COMPLETE


# The tree


def test_regenerating_keeps_the_old_reply_as_an_alternative(store: ChatStore) -> None:
    session_id, (user, first) = chat(store, "one")
    second = regenerate(store, session_id, user.id, "second")
    third = regenerate(store, session_id, user.id, "third")
    assert texts(store.alternatives(ME, first.id)) == ["reply to one", "second", "third"]
    assert [(m.alternative_number, m.num_alternatives) for m in store.alternatives(ME, second.id)] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    branch = store.branch(ME, session_id)
    assert [m.id for m in branch] == [user.id, third.id]
    assert [(m.alternative_number, m.num_alternatives) for m in branch] == [(1, 1), (3, 3)]
    assert store.get_message(ME, second.id).alternative_number == 2


def test_the_first_messages_of_a_session_are_alternatives_of_each_other(store: ChatStore) -> None:
    session_id, (one, _) = chat(store, "one")
    chat(store, "of another session")
    say(store, session_id, "other beginning", None)
    assert texts(store.alternatives(ME, one.id)) == ["one", "other beginning"]
    assert texts(store.children(ME, session_id, None)) == ["one", "other beginning"]


def test_a_branch_can_be_read_to_any_message(store: ChatStore) -> None:
    session_id, branch = chat(store, "one", "two", "three")
    for number, message in enumerate(branch):
        assert list(store.branch(ME, session_id, message.id)) == branch[: number + 1]
        assert message.position == number


def test_rolling_back_keeps_what_was_undone_for_redo(store: ChatStore) -> None:
    session_id, branch = chat(store, "one", "two")
    rolled_back = store.set_tip(ME, session_id, branch[1].id)
    assert rolled_back.tip_id == branch[1].id
    assert texts(store.branch(ME, session_id)) == ["one", "reply to one"]
    assert store.leaf_of(ME, branch[1].id).id == branch[3].id
    assert store.leaf_of(ME, branch[2].id).id == branch[3].id

    assert store.set_tip(ME, session_id, None).tip_id is None
    assert store.branch(ME, session_id) == ()
    assert store.leaf_of(ME, store.children(ME, session_id, None)[0].id).id == branch[3].id
    store.set_tip(ME, session_id, branch[3].id)
    assert [m.id for m in store.branch(ME, session_id)] == [m.id for m in branch]


def test_what_was_rolled_back_is_found_turn_by_turn_on_the_branch_last_viewed(store: ChatStore) -> None:
    session_id, (one, reply, two, old) = chat(store, "one", "two")
    assert store.next_reply(ME, session_id) is None, "nothing lies below the tip"
    regenerate(store, session_id, two.id, "newer")
    other_first = say(store, session_id, "uno", None)
    store.set_tip(ME, session_id, old.id)
    store.set_tip(ME, session_id, reply.id)
    assert (found := store.next_reply(ME, session_id)) is not None
    assert found.id == old.id, "the newer reply was not the one viewed last"
    store.set_tip(ME, session_id, None)
    assert (found := store.next_reply(ME, session_id)) is not None
    assert found.id == reply.id, "the newer first message was not the one viewed last"
    store.set_tip(ME, session_id, other_first.id)
    store.set_tip(ME, session_id, None)
    assert (found := store.next_reply(ME, session_id)) is not None
    assert found.id == other_first.id
    assert store.get_message(ME, one.id).selected_child_id == reply.id


def test_where_no_first_message_is_known_as_viewed_rolling_back_looks_at_where_the_chat_ended(
    store: ChatStore, database: Database
) -> None:
    session_id, (_, reply) = chat(store, "one")
    say(store, session_id, "uno", None)
    store.set_tip(ME, session_id, reply.id)
    run_sql(database, "UPDATE sessions SET selected_child_id = NULL")  # as a database of an earlier version has it
    store.set_tip(ME, session_id, None)
    assert (found := store.next_reply(ME, session_id)) is not None
    assert found.id == reply.id


def test_selecting_goes_down_to_the_leaf_last_viewed_not_to_the_newest(store: ChatStore) -> None:
    session_id, (one, reply, two, old_leaf) = chat(store, "one", "two")
    new_leaf = regenerate(store, session_id, two.id, "newer")
    assert store.leaf_of(ME, one.id).id == new_leaf.id
    store.set_tip(ME, session_id, old_leaf.id)
    assert store.leaf_of(ME, one.id).id == old_leaf.id
    other = regenerate(store, session_id, one.id, "other first reply")
    assert store.leaf_of(ME, one.id).id == other.id
    assert store.leaf_of(ME, reply.id).id == old_leaf.id


def test_without_a_selection_the_newest_child_counts(store: ChatStore, database: Database) -> None:
    session_id, (one, *_) = chat(store, "one", "two")
    newest = regenerate(store, session_id, one.id, "newest")
    for selected in (None, "00000000-0000-0000-0000-000000000000"):
        run_sql(database, "UPDATE messages SET selected_child_id = :id", id=selected)
        assert store.leaf_of(ME, one.id).id == newest.id


def test_a_session_ends_at_replies_of_its_own_only(store: ChatStore) -> None:
    session_id, (user, reply) = chat(store, "one")
    _, (_, foreign) = chat(store, "elsewhere")
    for wrong in (user.id, foreign.id):
        with pytest.raises(InvalidRecordError):
            store.set_tip(ME, session_id, wrong)
    assert store.get_session(ME, session_id).tip_id == reply.id


def test_an_edited_reply_stands_beside_the_original_and_becomes_the_tip(store: ChatStore) -> None:
    session_id, (user, reply, *_) = chat(store, "one", "two")
    edited, session = store.add_alternative(ME, reply.id, text="better", token_ids=[9], tokenizer_digest="abc")
    assert (edited.text, edited.token_ids, edited.edited, edited.parent_id) == ("better", (9,), True, user.id)
    assert (edited.alternative_number, edited.num_alternatives) == (2, 2)
    assert edited.status is MessageStatus.COMPLETE
    assert session.tip_id == edited.id
    assert texts(store.branch(ME, session_id)) == ["one", "better"]
    assert texts(store.branch(ME, session_id, store.leaf_of(ME, reply.id).id))[2:] == ["two", "reply to two"]
    with pytest.raises(InvalidRecordError):
        store.add_alternative(ME, user.id, text="x", token_ids=None, tokenizer_digest="abc")


def test_a_fork_is_a_session_of_its_own_with_the_branch_and_its_turns(store: ChatStore) -> None:
    session_id, branch = chat(store, "one", "two", "three")
    regenerate(store, session_id, branch[2].id, "not on the branch")
    original = store.tree(ME, session_id)
    fork = store.fork(ME, branch[3].id)
    copies = store.branch(ME, fork.id)
    assert (fork.title, fork.origin_id, fork.version) == ("A chat (2)", session_id, 1)
    assert (fork.system_prompt, fork.template_vars) == (original.session.system_prompt, original.session.template_vars)
    assert store.get_session(ME, fork.id) == fork
    assert texts(copies) == texts(branch[:4])
    assert [c.origin_id for c in copies] == [m.id for m in branch[:4]]
    assert [c.token_ids for c in copies] == [m.token_ids for m in branch[:4]]
    assert [c.created_at for c in copies] == [m.created_at for m in branch[:4]]
    assert {c.id for c in copies}.isdisjoint(m.id for m in branch)
    assert store.latest_turns(ME, [copies[3].id])[copies[3].id].stats == {"num_prompt_tokens": 7}
    assert store.leaf_of(ME, copies[0].id).id == copies[3].id
    assert store.tree(ME, session_id) == original
    store.delete(ME, session_id)
    store.purge(ME, session_id)
    assert store.branch(ME, fork.id) == copies


def test_a_fork_at_a_user_message_ends_at_the_reply_above_it(store: ChatStore) -> None:
    _, branch = chat(store, "one", "two")
    assert texts(store.branch(ME, store.fork(ME, branch[2].id).id)) == ["one", "reply to one"]
    empty = store.fork(ME, branch[0].id)
    assert (empty.tip_id, store.branch(ME, empty.id)) == (None, ())


def test_a_fork_of_a_reply_that_is_being_written_is_complete_in_itself(store: ChatStore) -> None:
    session = new_session(store)
    begun = begin(store, session.id, user_text="hello")
    fork = store.fork(ME, begun.reply.id)
    assert store.branch(ME, fork.id)[-1].status is MessageStatus.INTERRUPTED
    assert store.mark_interrupted() == 1


def test_a_branch_of_a_thousand_messages_is_read_in_a_few_statements(store: ChatStore) -> None:
    session_id, (user, reply) = chat(store, "one")
    session = dataclasses.replace(store.get_session(ME, session_id), id="long", tip_id="999")
    messages = tuple(
        dataclasses.replace(
            (user, reply)[n % 2],
            id=str(n),
            session_id="long",
            parent_id=str(n - 1) if n else None,
            position=n,
            selected_child_id=str(n + 1),
        )
        for n in range(1000)
    )
    store.insert_tree(ME, SessionTree(session, messages, ()))
    with noted_statements() as statements:
        assert [m.id for m in store.branch(ME, "long")] == [str(n) for n in range(1000)]
        assert store.leaf_of(ME, "0").id == "999"
    assert len(statements) <= 8


# Owners, damage


def test_others_rows_are_reported_as_missing_by_every_method(store: ChatStore) -> None:
    session_id, (user, reply) = chat(store, "secret")
    turn = store.turns(ME, reply.id)[0]
    store.create_session(OTHER, title="", system_prompt=None, sampling={}, settings={}, template_vars={})
    turn_values: dict[str, Any] = {
        "expected_tip": None,
        "request_id": None,
        "sampling": {},
        "settings": {},
        "seed": 0,
        "context_start": 0,
        "tokenizer_digest": "",
    }
    before = store.tree(ME, session_id)
    for attempt in (
        lambda: store.get_session(OTHER, session_id),
        lambda: store.update_session(OTHER, session_id, title="mine now"),
        lambda: store.delete(OTHER, session_id),
        lambda: store.undelete(OTHER, session_id),
        lambda: store.purge(OTHER, session_id),
        lambda: store.branch(OTHER, session_id),
        lambda: store.children(OTHER, session_id, None),
        lambda: store.get_message(OTHER, reply.id),
        lambda: store.alternatives(OTHER, reply.id),
        lambda: store.leaf_of(OTHER, user.id),
        lambda: store.tree(OTHER, session_id),
        lambda: store.turns(OTHER, reply.id),
        lambda: store.set_tip(OTHER, session_id, None),
        lambda: store.add_alternative(OTHER, reply.id, text="", token_ids=None, tokenizer_digest=""),
        lambda: store.fork(OTHER, reply.id),
        lambda: store.save_partial(OTHER, reply.id, text="", reasoning=None, token_ids=None),
        lambda: store.finish_turn(OTHER, turn.id, text="", reasoning=None, token_ids=None, stats={}),
        lambda: store.begin_turn(
            OTHER, session_id, user_text="hi", parent_id=reply.id, reply_to_continue=None, **turn_values
        ),
    ):
        with pytest.raises(RowNotFoundError):
            attempt()
    assert store.latest_turns(OTHER, [reply.id]) == {}
    assert store.find_turn_by_request(OTHER, session_id, "r") is None
    assert store.sessions(OTHER, query="secret") == ()
    assert store.tree(ME, session_id) == before


@pytest.mark.parametrize("broken", [None, "{not json", "[1]", b"\xff\xfe", 7])
def test_a_broken_optional_field_never_makes_a_chat_unopenable(
    store: ChatStore, database: Database, broken: object
) -> None:
    session_id, branch = chat(store, "one")
    run_sql(database, "UPDATE sessions SET sampling = :v, settings = :v, template_vars = :v, deleted_at = :v", v=broken)
    run_sql(database, "UPDATE turns SET stats = :v, sampling = :v, settings = :v, finished_at = :v", v=broken)
    run_sql(database, "UPDATE messages SET token_ids = :v, selected_child_id = :v, origin_id = NULL", v=broken)
    session = store.get_session(ME, session_id)
    assert (session.sampling, session.settings, session.template_vars, session.deleted_at) == ({}, {}, {}, None)
    assert texts(store.branch(ME, session_id)) == texts(branch)
    assert [m.token_ids for m in store.branch(ME, session_id)] == [None, None]
    assert store.turns(ME, branch[1].id)[0].stats == {}
    assert store.leaf_of(ME, branch[0].id).id == branch[1].id


def test_damaged_bytes_in_a_text_an_unknown_status_and_a_lost_tip_are_read_as_what_they_may_be(
    store: ChatStore, database: Database
) -> None:
    session_id, branch = chat(store, "one", "two")
    run_sql(database, "UPDATE messages SET text = CAST(:v AS TEXT), created_at = 'yesterday'", v=b"caf\xe9")
    run_sql(database, "UPDATE messages SET status = 'from the future'")
    assert texts(store.branch(ME, session_id)) == ["caf\ufffd"] * 4
    assert store.branch(ME, session_id)[0].status is MessageStatus.COMPLETE
    run_sql(database, "UPDATE sessions SET tip_id = 'nowhere'")
    assert store.branch(ME, session_id) == ()
    assert [m.id for m in store.children(ME, session_id, None)] == [branch[0].id]


class TreeMachine(RuleBasedStateMachine):
    """Any sequence of operations, against a list of all that was ever said in the one session."""

    new_database: Callable[[], Database]

    def __init__(self) -> None:
        super().__init__()
        self.database = self.new_database()
        self.store = ChatStore(self.database)
        self.session_id = new_session(self.store).id
        self.said: dict[str, str] = {}
        self.running: BegunTurn | None = None
        self.version = 1

    def teardown(self) -> None:
        self.database.close()

    def tip(self) -> str | None:
        return self.store.get_session(ME, self.session_id).tip_id

    def ids(self, role: Role) -> list[str]:
        return [m.id for m in self.store.tree(ME, self.session_id).messages if m.role is role]

    def begun(self, begun: BegunTurn) -> None:
        if begun.user is not None:
            self.said[begun.user.id] = begun.user.text
        self.said[begun.reply.id] = begun.reply.text
        self.running = begun

    @precondition(lambda self: self.running is None)
    @rule(text=st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8))
    def send(self, text: str) -> None:
        self.begun(begin(self.store, self.session_id, user_text=text, parent_id=self.tip()))

    @precondition(lambda self: self.running is None)
    @rule(data=st.data())
    def edit_a_user_message_or_regenerate(self, data: st.DataObject) -> None:
        if users := self.ids(Role.USER):
            user = self.store.get_message(ME, data.draw(st.sampled_from(users)))
            change = data.draw(st.sampled_from(["edit", "regenerate"]))
            values = (
                {"user_text": "edited", "parent_id": user.parent_id} if change == "edit" else {"parent_id": user.id}
            )
            self.begun(begin(self.store, self.session_id, **values))

    @precondition(lambda self: self.running is None)
    @rule()
    def continue_the_tip(self) -> None:
        tip = self.tip()
        if tip is not None and not self.store.children(ME, self.session_id, tip):
            self.begun(begin(self.store, self.session_id, reply_to_continue=tip))

    @precondition(lambda self: self.running is not None)
    @rule(how=st.sampled_from(["finish", "die"]))
    def end_the_turn(self, how: str) -> None:
        assert self.running is not None
        reply_id, text = self.running.reply.id, f"reply {len(self.said)}"
        if how == "finish":
            finish(self.store, self.running, text)
        else:
            self.store.save_partial(ME, reply_id, text=text, reasoning=None, token_ids=[1])
            assert self.store.mark_interrupted() == 1
        self.said[reply_id] = text
        self.running = None

    @rule(data=st.data())
    def select_or_roll_back(self, data: st.DataObject) -> None:
        if self.running is not None:
            return
        target = data.draw(st.sampled_from([None, *self.ids(Role.ASSISTANT), *self.ids(Role.USER)]))
        if target is not None and data.draw(st.booleans()):
            target = self.store.leaf_of(ME, target).id
        if target is None or self.store.get_message(ME, target).role is Role.ASSISTANT:
            self.store.set_tip(ME, self.session_id, target)

    @precondition(lambda self: self.running is None)
    @rule(data=st.data())
    def edit_a_reply(self, data: st.DataObject) -> None:
        if replies := self.ids(Role.ASSISTANT):
            edited, _ = self.store.add_alternative(
                ME, data.draw(st.sampled_from(replies)), text="by hand", token_ids=None, tokenizer_digest="abc"
            )
            self.said[edited.id] = "by hand"

    @rule(data=st.data())
    def fork_and_purge_the_fork(self, data: st.DataObject) -> None:
        if messages := self.ids(Role.ASSISTANT):
            fork = self.store.fork(ME, data.draw(st.sampled_from(messages)))
            self.store.delete(ME, fork.id)
            self.store.purge(ME, fork.id)

    @invariant()
    def every_message_is_reached_with_its_text_and_every_branch_is_sound(self) -> None:
        reached: dict[str, str] = {}
        waiting = [m.id for m in self.store.children(ME, self.session_id, None)]
        for first in waiting[:1]:
            assert [m.id for m in self.store.alternatives(ME, first)] == waiting
        while waiting:
            message = self.store.get_message(ME, waiting.pop())
            reached[message.id] = message.text
            children = self.store.children(ME, self.session_id, message.id)
            assert all(child.role is not message.role for child in children)
            assert message.role is Role.ASSISTANT or children
            waiting += [child.id for child in children]
            leaf = self.store.leaf_of(ME, message.id)
            path = self.store.branch(ME, self.session_id, leaf.id)
            assert message.id in {m.id for m in path}
            assert [m.role for m in path] == [Role.USER, Role.ASSISTANT] * (len(path) // 2)
            assert [m.position for m in path] == list(range(len(path)))
        assert reached == self.said

    @invariant()
    def the_version_grows_and_the_tip_is_a_reply_of_the_session(self) -> None:
        session = self.store.get_session(ME, self.session_id)
        assert session.version >= self.version
        self.version = session.version
        assert session.tip_id is None or session.tip_id in self.ids(Role.ASSISTANT)


@pytest.mark.parametrize("num_examples", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_no_sequence_of_operations_loses_a_message_or_breaks_the_order_of_roles(
    num_examples: int, tmp_path: Path
) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())
    new_database = staticmethod(lambda: open_database(next(folders)))
    run_state_machine_as_test(
        type("Machine", (TreeMachine,), {"new_database": new_database}),
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
