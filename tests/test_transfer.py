"""Export and import: an export is proven by reading it back, and a bad file never half arrives."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import open_database

from storage.chat_store import ChatStore
from storage.database import Database
from storage.errors import InvalidRecordError, RowNotFoundError
from storage.records import MessageStatus, Role, SessionTree
from storage.transfer import (
    ImportOutcome,
    ImportReport,
    export_json,
    export_markdown,
    import_chat,
    read_json,
)
from storage.transfer_fields import MAX_NOTES, MORE_NOTES

ME, OTHER = "me", "somebody else"
CODE = "Look:\n\n```python\nprint('$x$')\n```\n\nand $\\frac{1}{2}$, \\[ e^{i\\pi} \\]\n\t| a | b |"


@pytest.fixture
def store(database: Database) -> ChatStore:
    return ChatStore(database)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[ChatStore]:
    with open_database(tmp_path / "elsewhere") as database:
        yield ChatStore(database)


def clean(text: str) -> str:
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def reply(store: ChatStore, session_id: str, text: str, *, reasoning: str | None = None, **begin: Any) -> str:
    begun = store.begin_turn(
        ME,
        session_id,
        **{"user_text": None, "parent_id": None, "reply_to_continue": None, "request_id": None} | begin,
        expected_tip=None,
        sampling={"temperature": 0.0, "stop": ["END"]},
        settings={"cache": "dynamic"},
        seed=2**63 - 1,
        context_start=0,
        tokenizer_digest="abc",
    )
    message, _ = store.finish_turn(
        ME, begun.turn.id, text=text, reasoning=reasoning, token_ids=[0, 2**32 - 1], stats={"ttft_s": 0.25}
    )
    return message.id


@pytest.fixture
def session_id(store: ChatStore) -> str:
    """Two turns, an alternative of the first reply with a turn below it, a hand-written reply, an unfinished one."""
    session = store.create_session(
        ME,
        title="Äpfel & π",
        system_prompt="Be brief.",
        sampling={"top_k": 5},
        settings={"context": "stop"},
        template_vars={"date_string": "1 May"},
    )
    store.update_session(ME, session.id, pinned=True)
    first = reply(store, session.id, CODE, user_text="one 👩‍👩‍👧")
    reply(store, session.id, "two", user_text="and?", parent_id=first, reasoning="hm\nhm")
    user_id = store.branch(ME, session.id)[0].id
    second = reply(store, session.id, "other", parent_id=user_id)
    third = reply(store, session.id, "below other", user_text="go on", parent_id=second)
    reply(store, session.id, "below other, longer", reply_to_continue=third)
    store.add_alternative(ME, third, text="by hand", token_ids=None, tokenizer_digest="abc")
    store.begin_turn(
        ME,
        session.id,
        user_text="still running",
        parent_id=first,
        expected_tip=None,
        reply_to_continue=None,
        request_id="click",
        sampling={},
        settings={},
        seed=0,
        context_start=0,
        tokenizer_digest="abc",
    )
    store.mark_interrupted()
    return session.id


def exported(store: ChatStore, session_id: str) -> dict[str, Any]:
    data = json.loads(export_json(store, ME, session_id))
    assert isinstance(data, dict)
    return data


def import_data(store: ChatStore, data: Any, owner: str = ME, replace: bool = False) -> ImportReport:
    return import_chat(store, owner, read_json(json.dumps(data), owner, clean=clean), replace=replace)


def comparable(tree: SessionTree) -> SessionTree:
    """Without what an import may change: the version counter, request ids, the order between branches."""
    return SessionTree(
        dataclasses.replace(tree.session, version=1),
        tuple(sorted(tree.messages, key=lambda m: (m.position, m.id))),
        tuple(dataclasses.replace(turn, request_id=None) for turn in tree.turns),
    )


def test_an_export_read_back_elsewhere_is_the_same_chat(
    store: ChatStore, elsewhere: ChatStore, session_id: str
) -> None:
    report = import_chat(elsewhere, ME, read_json(export_json(store, ME, session_id).encode(), ME, clean=clean))
    assert report.outcome is ImportOutcome.ADDED
    assert report.notes == ()
    original, copy = store.tree(ME, session_id), elsewhere.tree(ME, session_id)
    assert report.num_messages == len(original.messages) == 10
    assert comparable(copy) == comparable(original)
    assert report.session == copy.session
    assert elsewhere.branch(ME, session_id) == store.branch(ME, session_id)


def test_a_tree_of_many_branches_is_exported_from_elsewhere_exactly_as_from_here(
    store: ChatStore, elsewhere: ChatStore
) -> None:
    choose = random.Random(7)
    session = store.create_session(
        ME,
        title="Many branches",
        system_prompt=CODE,
        sampling={"temperature": 0.5, "stop": ["END"], "seed": 2**63 - 1},
        settings={"thinking": False, "context_full": "stop", "prompt_lookup": True, "cache": "quantized-int8"},
        template_vars={"date_string": "1 May"},
    )
    tips: list[str | None] = [None]
    for n in range(40):
        above = choose.choice(tips)
        begun = {"user_text": f"say {n}", "parent_id": above}
        if n % 5 == 4:  # written anew rather than said anew
            begun = {"parent_id": store.tree(ME, session.id).messages[0].id}
        tips.append(reply(store, session.id, f"{n}: {CODE}", reasoning="hm" if n % 3 else None, **begun))
    store.set_tip(ME, session.id, choose.choice(tips[1:]))
    assert len(store.tree(ME, session.id).messages) >= 70
    first = export_json(store, ME, session.id)
    report = import_chat(elsewhere, ME, read_json(first, ME, clean=clean))
    assert report.notes == ()
    assert export_json(elsewhere, ME, session.id) == first
    assert export_markdown(elsewhere, ME, session.id) == export_markdown(store, ME, session.id)
    assert elsewhere.get_session(ME, session.id).settings == session.settings


def test_importing_a_chat_that_is_in_the_bin_takes_it_out_as_it_was(store: ChatStore, session_id: str) -> None:
    data = exported(store, session_id)
    before = store.tree(ME, session_id)
    store.delete(ME, session_id)
    data["session"]["title"] = "older title"
    report = import_data(store, data)
    assert report.outcome is ImportOutcome.RESTORED
    assert report.session == store.get_session(ME, session_id)
    assert (report.session.deleted_at, report.session.title) == (None, before.session.title)
    assert store.tree(ME, session_id).messages == before.messages
    assert store.sessions(ME, deleted=True) == ()


def test_replacing_a_chat_that_is_in_the_bin_takes_the_files_and_keeps_the_other_there(
    store: ChatStore, session_id: str
) -> None:
    data = exported(store, session_id)
    store.delete(ME, session_id)
    data["session"]["title"] = "from the file"
    report = import_data(store, data, replace=True)
    assert report.outcome is ImportOutcome.REPLACED
    assert [s.title for s in store.sessions(ME)] == ["from the file"]
    assert [s.title for s in store.sessions(ME, deleted=True)] == ["Äpfel & π"]


def test_importing_twice_leaves_the_first_as_it_is(store: ChatStore, session_id: str) -> None:
    data = exported(store, session_id)
    before = store.tree(ME, session_id)
    data["session"]["title"] = "older title"
    report = import_data(store, data)
    assert (report.outcome, report.session) == (ImportOutcome.SKIPPED, before.session)
    assert store.tree(ME, session_id) == before


def test_replacing_puts_the_stored_chat_into_the_bin(store: ChatStore, session_id: str) -> None:
    data = exported(store, session_id)
    last = store.branch(ME, session_id)[-1]
    reply(store, session_id, "newer reply", user_text="newer", parent_id=last.id)
    newer = store.tree(ME, session_id)
    report = import_data(store, data, replace=True)
    assert report.outcome is ImportOutcome.REPLACED
    assert [m.text for m in store.branch(ME, session_id)][-1] == last.text
    (in_bin,) = store.sessions(ME, deleted=True)
    assert sorted(m.text for m in store.tree(ME, in_bin.id).messages) == sorted(m.text for m in newer.messages)
    assert [m.text for m in store.branch(ME, in_bin.id)][-1] == "newer reply"
    assert len(store.tree(ME, in_bin.id).turns) == len(newer.turns)
    assert import_data(store, data | {"session": data["session"] | {"id": "new"}}, replace=True).outcome == "added"


def test_another_owners_ids_are_not_touched_and_not_told(store: ChatStore, session_id: str) -> None:
    before = store.tree(ME, session_id)
    report = import_data(store, exported(store, session_id), owner=OTHER)
    assert report.outcome is ImportOutcome.ADDED
    assert report.session.id != session_id
    copy = store.tree(OTHER, report.session.id)
    assert {m.id for m in copy.messages}.isdisjoint(m.id for m in before.messages)
    assert sorted(m.text for m in copy.messages) == sorted(m.text for m in before.messages)
    assert len(copy.turns) == len(before.turns)
    with pytest.raises(RowNotFoundError):
        store.get_session(ME, report.session.id)
    assert store.tree(ME, session_id) == before


def test_unknown_parts_are_reported_and_the_rest_is_kept(
    store: ChatStore, elsewhere: ChatStore, session_id: str
) -> None:
    data = exported(store, session_id)
    data["attachments"] = []
    data["session"]["tags"] = ["a"]
    for message in data["messages"]:
        message["mood"] = "good"
    report = import_data(elsewhere, data)
    assert [note.partition(": ")[2] for note in report.notes] == [
        "attachments of a file.",
        "tags of a session.",
        "mood of a message.",
    ]
    assert comparable(elsewhere.tree(ME, session_id)) == comparable(store.tree(ME, session_id))


def test_broken_optional_values_take_their_defaults_and_are_reported(
    elsewhere: ChatStore, store: ChatStore, session_id: str
) -> None:
    data = exported(store, session_id)
    data["session"] |= {"sampling": None, "created_at": "yesterday", "tip_id": "gone", "title": 7}
    for message in data["messages"]:
        message |= {"token_ids": [-1], "created_at": None, "selected_child_id": 4, "tokenizer_digest": [], "edited": 0}
    data["turns"][0] |= {"seed": True, "stats": [], "finished_at": "9999-99-99"}
    data["turns"][1]["reply_id"] = "nobody"
    report = import_data(elsewhere, data)
    assert len(report.notes) == 10
    tree = elsewhere.tree(ME, session_id)
    assert (tree.session.title, tree.session.sampling) == ("", {})
    assert tree.session.tip_id in {m.id for m in tree.messages if m.role is Role.ASSISTANT}
    assert {m.token_ids for m in tree.messages} == {None}
    assert (tree.turns[0].seed, tree.turns[0].stats) == (0, {})
    assert len(tree.turns) == len(data["turns"]) - 1


def test_texts_are_cleaned_and_ids_that_stood_for_other_text_are_dropped(
    elsewhere: ChatStore, store: ChatStore, session_id: str
) -> None:
    data = exported(store, session_id)
    for message in data["messages"]:
        if message["text"] == "two":
            message["text"] = "tw\x00o \ud800"
    data["session"]["title"] = "\ud83d"
    import_data(elsewhere, data)
    assert elsewhere.get_session(ME, session_id).title == "?"
    (message,) = (m for m in elsewhere.tree(ME, session_id).messages if m.text.startswith("two"))
    assert (message.text, message.token_ids) == ("two ?", None)


def test_a_message_without_a_reply_gets_an_empty_one(elsewhere: ChatStore, store: ChatStore, session_id: str) -> None:
    data = exported(store, session_id)
    data["messages"].append({"id": "lonely", "parent_id": None, "role": "user", "text": "hello?"})
    report = import_data(elsewhere, data)
    assert any("without a reply" in note for note in report.notes)
    leaf = elsewhere.leaf_of(ME, "lonely")
    assert (leaf.text, leaf.status, leaf.parent_id) == ("", MessageStatus.INTERRUPTED, "lonely")


def drop_format(data: Any) -> None:
    del data["format"]


def later_version(data: Any) -> None:
    data["format_version"] = 2


def drop_session(data: Any) -> None:
    del data["session"]


def drop_first_message(data: Any) -> None:
    del data["messages"][0]


def two_users_in_a_row(data: Any) -> None:
    data["messages"][1]["role"] = "user"


def reply_first(data: Any) -> None:
    data["messages"] = [data["messages"][1] | {"parent_id": None}]


def circle(data: Any) -> None:
    data["messages"][0]["parent_id"] = data["messages"][3]["id"]
    data["messages"] = data["messages"][:4]


def same_id_twice(data: Any) -> None:
    data["messages"].append(data["messages"][0])


def unknown_role(data: Any) -> None:
    data["messages"][0]["role"] = "system"


def id_of_another_kind(data: Any) -> None:
    data["messages"][0]["id"] = "../../\ud800"


def messages_no_list(data: Any) -> None:
    data["messages"] = {"0": data["messages"][0]}


def message_no_object(data: Any) -> None:
    data["messages"].append("hello")


@pytest.mark.parametrize(
    "damage",
    [
        drop_format,
        later_version,
        drop_session,
        drop_first_message,
        two_users_in_a_row,
        reply_first,
        circle,
        same_id_twice,
        unknown_role,
        id_of_another_kind,
        messages_no_list,
        message_no_object,
    ],
)
def test_a_file_without_a_sound_tree_is_refused_whole(
    store: ChatStore, elsewhere: ChatStore, session_id: str, damage: Callable[[Any], None]
) -> None:
    data = exported(store, session_id)
    damage(data)
    with pytest.raises(InvalidRecordError):
        import_data(elsewhere, data)
    assert elsewhere.sessions(ME) == ()


@pytest.mark.parametrize("data", ["", "hello", "[]", "{}", "[" * 100_000, b"\xff\xfe", "9" * 10_000, '{"format": 1}'])
def test_what_is_no_export_at_all_is_refused_with_a_sentence(data: str | bytes) -> None:
    with pytest.raises(InvalidRecordError, match="exported"):
        read_json(data, ME, clean=clean)


def test_others_chats_cannot_be_exported(store: ChatStore, session_id: str) -> None:
    for export in (export_json, export_markdown):
        with pytest.raises(RowNotFoundError):
            export(store, OTHER, session_id)


def test_markdown_has_roles_times_and_every_text_as_it_is(store: ChatStore, session_id: str) -> None:
    first = next(m for m in store.tree(ME, session_id).messages if m.text == CODE)
    store.set_tip(ME, session_id, next(m for m in store.tree(ME, session_id).messages if m.text == "two").id)
    text = export_markdown(store, ME, session_id)
    assert text.startswith("# Äpfel & π\n")
    assert "## System prompt\n\nBe brief.\n" in text
    at = first.created_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    assert f"## Assistant · {at} · alternative 1 of 2\n\n{CODE}\n" in text
    assert "> *Reasoning*\n>\n> hm\n> hm\n\ntwo\n" in text
    assert [line.split(" · ")[0] for line in text.splitlines() if line.startswith("## ")] == [
        "## System prompt",
        "## User",
        "## Assistant",
        "## User",
        "## Assistant",
    ]


@pytest.mark.parametrize(
    ("text", "closed_by"),
    [
        ("```python\nprint(1)", "\n```"),
        ("~~~~\n```\n~~~", "\n~~~~"),
        ("```\na\n```\n````md\n```\nb\n```", "\n````"),
        ("```\na\n```", ""),
        ("```\na\n````", ""),
        ("` ```inline``` ` and ``` here", ""),
        ("```not a fence` at all", ""),
        ("    ```\nan indented block", ""),
    ],
)
def test_a_code_block_left_open_by_a_stopped_reply_does_not_swallow_the_rest(
    store: ChatStore, text: str, closed_by: str
) -> None:
    session = store.create_session(ME, title="", system_prompt=None, sampling={}, settings={}, template_vars={})
    first = reply(store, session.id, text, user_text="go")
    reply(store, session.id, "the end", user_text="next", parent_id=first)
    assert f"\n\n{text}{closed_by}\n\n## User" in export_markdown(store, ME, session.id)


@pytest.mark.parametrize(
    "value", [[], {}, ["user"], None, "system", 5, "x" * 10**6], ids=lambda value: repr(value)[:12]
)
def test_a_role_that_is_none_is_refused_in_a_short_sentence(store: ChatStore, session_id: str, value: Any) -> None:
    data = exported(store, session_id)
    data["messages"][1]["role"] = value
    with pytest.raises(InvalidRecordError, match="role") as caught:
        import_data(store, data)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("depth", [17, 300, 900, 960, 990])
def test_settings_nested_beyond_measure_are_left_out(elsewhere: ChatStore, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    text = (
        f'{{"format": "chatcache.chat", "format_version": 1, "session": {{"id": "a", "sampling": {{"stop": {deep}}}}}}}'
    )
    try:
        chat = read_json(text, ME, clean=clean)
    except InvalidRecordError:
        assert depth > 900
        return
    assert any("sampling" in note for note in chat.notes)
    import_chat(elsewhere, ME, chat)
    assert elsewhere.get_session(ME, "a").sampling == {}


@pytest.mark.timeout(60)
def test_a_file_full_of_unknown_names_is_read_and_reported_in_few_sentences(
    elsewhere: ChatStore, store: ChatStore, session_id: str
) -> None:
    data = exported(store, session_id)
    data["session"] |= {f"unknown {i} " + "x" * 100: None for i in range(50_000)}
    report = import_data(elsewhere, data)
    assert len(report.notes) <= MAX_NOTES + 1
    assert report.notes[-1] == MORE_NOTES
    assert all(len(note) < 200 for note in report.notes)
