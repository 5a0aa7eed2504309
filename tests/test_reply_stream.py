"""Token ids → text as they are sampled."""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
import regex
from chat_styles import CHATML, KEPT_THINKING, LLAMA2, TOKENIZERS
from examples import examples, few_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from chatcache.prompt import PromptBuilder
from chatcache.reply_stream import ReplyStream, StreamedReply, TextPiece

TOKENIZER_NAMES = sorted(TOKENIZERS)
CHARACTERS = [
    "👨‍👩‍👧",
    "🇩🇪",
    "👍🏽",
    "1️⃣",
    "é",
    "e\u0301",
    "n\u0303",
    "世",
    "界",
    "が",
    "กำ",
    "नि",
    "한",
    "\u1112\u1161\u11ab",
]

tokenizer_named = functools.cache(lambda name: TOKENIZERS[name]())


@functools.cache
def builder(name: str = "byte-level", template: str = CHATML) -> PromptBuilder:
    tokenizer = tokenizer_named(name)
    return PromptBuilder(tokenizer, template, frozenset({tokenizer.eos_token_id}))


def ids_of(text: str, name: str = "byte-level", cuts: Sequence[int] = ()) -> tuple[int, ...]:
    """Ids of `text` in the middle of a chat, cut at `cuts` first, so that they need not be the canonical ones."""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    return tuple(i for piece in pieces for i in builder(name).encode_reply(piece))


def byte_ids(data: bytes) -> tuple[int, ...]:
    """One id per byte."""
    return tuple(tokenizer_named("sentence-piece").convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in data]))


def run(stream: ReplyStream, ids: Sequence[int]) -> tuple[list[TextPiece], StreamedReply]:
    pieces = [piece for i in ids for piece in stream.push(i)]
    return pieces + list(stream.finish().pieces), stream.finish()


def joined(pieces: Sequence[TextPiece], is_reasoning: bool = False) -> str:
    return "".join(piece.text for piece in pieces if piece.is_reasoning == is_reasoning)


words = st.sampled_from([*CHARACTERS, " ", "\n", "Hello", "</s>", "<think>", "#", ", "])
letters = st.characters(codec="utf-8", exclude_characters="▁\ufdd0\ufdd1\ufdd2\ufdd3")  # ▁ is SentencePiece's space
texts = st.lists(words | letters, max_size=12).map(lambda parts: "a" + "".join(parts))
stop_places = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 5)), min_size=1, max_size=3)
cut_places = st.lists(st.integers(0, 10**6), max_size=8)


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@settings(max_examples=examples(60), deadline=None)
@given(text=texts, cuts=cut_places)
def test_pieces_are_whole_characters_and_together_the_text(name: str, text: str, cuts: list[int]) -> None:
    ids = ids_of(text, name, cuts)
    pieces, reply = run(builder(name).reply_stream(), ids)
    assert joined(pieces) == reply.text == text
    assert reply.reasoning is None
    assert reply.token_ids == ids
    boundaries = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
    ends = [sum(len(p.text) for p in pieces[: i + 1]) for i in range(len(pieces))]
    stray = {text[end - 1] for end in ends if end not in boundaries}
    assert all(unicodedata.category(last)[0] in "CPSZ" and last.isascii() for last in stray), "cut inside a character"


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@pytest.mark.parametrize("character", CHARACTERS)
def test_a_character_of_many_tokens_comes_out_whole(name: str, character: str) -> None:
    text = f"so {character} it"
    ids = ids_of(text, name, range(len(text)))
    pieces, _ = run(builder(name).reply_stream(), ids)
    assert any(character in piece.text for piece in pieces)
    assert not any(unicodedata.combining(piece.text[0]) for piece in pieces)


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_ids_give_the_text_that_the_tokenizers_own_decoder_gives(name: str, data: Any) -> None:
    tokenizer = tokenizer_named(name)
    plain = [i for i in range(len(tokenizer)) if i not in tokenizer.added_tokens_decoder]
    ids = data.draw(st.lists(st.sampled_from(plain), max_size=20))
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    pieces, reply = run(builder(name).reply_stream(), ids)
    assert joined(pieces) == reply.text
    if "\ufffd" not in whole:
        assert reply.text == whole
        assert reply.token_ids == tuple(ids)


def test_invalid_bytes_in_the_middle_are_shown_as_such_and_kept_in_the_ids() -> None:
    ids = byte_ids(b"a\xffb\xf0\x9fc")
    _, reply = run(builder("sentence-piece").reply_stream(), ids)
    assert reply.text == "a\ufffdb\ufffdc"
    assert reply.token_ids == ids


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_an_incomplete_character_at_the_end_is_cut_with_its_ids(num_bytes: int) -> None:
    ids = byte_ids("ok 🙂🙂".encode())
    cut = ids[: len(ids) - 4 + num_bytes]
    stream = builder("sentence-piece").reply_stream()
    pieces, reply = run(stream, cut)
    assert joined(pieces) == reply.text == "ok 🙂"
    assert reply.token_ids == ids[:-4]
    more, _ = run(stream, ids[len(cut) :])
    assert more[-1].text == "🙂", "what was cut for a snapshot is not lost to the stream"


@pytest.mark.parametrize(
    "end", [b"\xe2", b"\xe2\xf0", b"\xe2\xf0\x9f", b"\xff", b"\xff\xe2", b"\xc3\xc3\xc3\xc3"], ids=repr
)
def test_bytes_at_the_end_that_are_no_text_are_kept_as_they_were_sampled(end: bytes) -> None:
    ids = byte_ids(b"ok " + end)
    pieces, reply = run(builder("sentence-piece").reply_stream(), ids)
    assert joined(pieces) == reply.text == "ok " + "\ufffd" * reply.text.count("\ufffd")
    assert reply.token_ids == ids[: len(reply.token_ids)]
    _, again = run(builder("sentence-piece").reply_stream(), reply.token_ids)
    assert (again.text, again.token_ids) == (reply.text, reply.token_ids)


def test_a_token_that_ends_one_character_and_begins_another_is_cut_by_encoding_anew() -> None:
    tokenizer = straddling_tokenizer()
    prompts = PromptBuilder(tokenizer, CHATML, frozenset())
    ids = tokenizer.convert_tokens_to_ids([*byte_level("é")[:1], byte_level("é")[1] + byte_level("ü")[0]])
    _, reply = run(prompts.reply_stream(), ids)
    assert reply.text == "é"
    assert tokenizer.decode(reply.token_ids) == "é"
    assert len(reply.token_ids) == 2


def byte_level(text: str) -> str:
    """As byte-level BPE writes it, one printable character per byte."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]


def straddling_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    straddling = byte_level("é")[1] + byte_level("ü")[0]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate([*alphabet, straddling])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@settings(max_examples=examples(60), deadline=None)
@given(text=texts, cuts=cut_places, places=stop_places)
def test_a_stop_string_ends_text_and_ids_and_is_never_shown(
    name: str, text: str, cuts: list[int], places: list[tuple[int, int]]
) -> None:
    stops = [(text + "~")[at % len(text) :][:length] for at, length in places]
    ids = ids_of(text, name, cuts)
    stream = builder(name).reply_stream(stop=stops)
    pieces, reply = run(stream, ids)
    plain, unstopped = builder(name).reply_stream(), ""
    for i in ids:  # what generate does: look at the text after each token, and stop at the first one that shows any
        plain.push(i)
        unstopped = plain.finish().text
        if any(stop in unstopped for stop in stops):
            break
    found = [unstopped.index(stop) for stop in stops if stop in unstopped]
    assert stream.stopped == bool(found)
    assert joined(pieces) == reply.text == (unstopped[: min(found)] if found else text)
    again, _ = run(builder(name).reply_stream(), reply.token_ids)
    assert joined(again) == reply.text, "the ids are those of the visible text"
    assert stream.push(ids[0]) == [] if stream.stopped else True


def test_a_stop_string_inside_a_token_keeps_the_visible_part_of_it() -> None:
    hello = ids_of("Hello")
    assert len(hello) == 1, "the test needs one token that holds the stop string"
    ids = (*ids_of("ab"), *hello)
    _, reply = run(builder().reply_stream(stop=["lo"]), ids)
    assert reply.text == "abHel"
    assert reply.token_ids == (*ids_of("ab"), *ids_of("Hel"))


def test_a_stop_string_inside_the_first_token_keeps_that_tokens_leading_space() -> None:
    ids = tokenizer_named("sentence-piece").convert_tokens_to_ids(["▁wor", "d"])
    _, reply = run(builder("sentence-piece", LLAMA2).reply_stream(stop=["or"]), ids)
    assert reply.text == "w"
    assert tokenizer_named("sentence-piece").convert_ids_to_tokens(reply.token_ids) == ["▁", "w"]


@pytest.mark.parametrize("end", ["</s>", "<|im_end|>"])
def test_a_terminator_ends_the_reply_and_is_not_part_of_it(end: str) -> None:
    ids = ids_of("Fine.")
    stream = builder().reply_stream()
    _, reply = run(stream, [*ids, tokenizer_named("byte-level").convert_tokens_to_ids(end), *ids])
    assert stream.stopped
    assert (reply.text, reply.token_ids) == ("Fine.", ids)


def test_a_control_token_that_is_no_terminator_is_kept_but_not_shown() -> None:
    ids = (*ids_of("a"), tokenizer_named("byte-level").convert_tokens_to_ids("<|im_start|>"), *ids_of("b"), 10**6)
    _, reply = run(builder().reply_stream(), ids)
    assert (reply.text, reply.token_ids) == ("ab", ids)


def tagged_ids(text: str) -> tuple[int, ...]:
    """Reasoning tags as the tokens they are, everything else letter by letter."""
    tokenizer = tokenizer_named("byte-level")
    parts = regex.split("(</?think>)", text)
    letters = [piece for i, part in enumerate(parts) for piece in ([part] if i % 2 else part)]
    return tuple(i for piece in letters for i in tokenizer.encode(piece))


REASONING = [
    ("<think>\nBecause so.\n</think>\n\nTwo.", False, "Because so.", "Two."),
    ("\n <think>Because\n\nso.  </think>Two.\n", False, "Because\n\nso.", "Two.\n"),
    ("Because so.</think>Two.", True, "Because so.", "Two."),
    ("<think>\n\n</think>\n\nTwo.", False, "", "Two."),
    ("<think>\nBecause <b", False, "Because <b", ""),
    ("<think>\nBecause </thi", False, "Because </thi", ""),
    ("<think>\nBecause </thin k>", False, "Because </thin k>", ""),
    ("", True, "", ""),
    ("  indented", False, None, "  indented"),
    ("<thi", False, None, "<thi"),
    ("The tag <think> opens, </think> closes.", False, None, "The tag <think> opens, </think> closes."),
]


@pytest.mark.parametrize(("text", "starts", "reasoning", "answer"), REASONING)
@pytest.mark.parametrize("spelled", [False, True], ids=["tags are tokens", "tags are spelled out"])
def test_reasoning_is_told_from_the_answer(
    text: str, starts: bool, reasoning: str | None, answer: str, spelled: bool
) -> None:
    ids = ids_of(text, cuts=range(len(text))) if spelled else tagged_ids(text)
    pieces, reply = run(builder().reply_stream(starts_in_reasoning=starts), ids)
    assert (reply.reasoning, reply.text) == (reasoning, answer)
    assert (joined(pieces, True), joined(pieces)) == (reasoning or "", answer)
    assert reply.token_ids == ids


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@settings(max_examples=examples(50), deadline=None)
@given(text=texts, cuts=cut_places, tags=st.booleans(), at=st.integers(0, 100), stops=st.sampled_from([[], ["lo"]]))
def test_a_continued_reply_goes_on_where_it_was(
    name: str, text: str, cuts: list[int], tags: bool, at: int, stops: list[str]
) -> None:
    text = f"<think>\n{text}\n</think>\n\n{text}" if tags else text
    ids = ids_of(text, name, cuts)
    earlier, prior = run(builder(name).reply_stream(stop=stops), ids[: at % (len(ids) + 1)])
    whole_pieces, whole = run(builder(name).reply_stream(stop=stops), ids)
    if prior.token_ids != ids[: at % (len(ids) + 1)]:
        return  # stopped already, or cut inside a character
    later, reply = run(builder(name).reply_stream(stop=stops, prior_ids=prior.token_ids), ids[len(prior.token_ids) :])
    assert (reply.text, reply.reasoning, reply.token_ids) == (whole.text, whole.reasoning, whole.token_ids)
    if prior.text and tags and "<think>".startswith(prior.text):
        earlier = []  # half a tag was shown as text, because nothing more had come
    for kind in (False, True):
        assert (joined(earlier, kind) + joined(later, kind)).startswith(joined(whole_pieces, kind))


def test_finish_may_be_asked_at_any_time_and_changes_nothing() -> None:
    ids = tagged_ids("<think>\nBecause 🙂 so.\n</think>\n\nTwo e\u0301.")
    asked, quiet = builder().reply_stream(stop=["zz"]), builder().reply_stream(stop=["zz"])
    for i in ids:
        assert asked.push(i) == quiet.push(i)
        assert asked.finish() == asked.finish()
    assert asked.finish() == quiet.finish()


@pytest.mark.parametrize(
    ("template", "tokens", "text"),
    [
        (LLAMA2, ["▁", "Hello▁wor", "l", "d"], "Hello world"),
        (CHATML, ["Hello▁wor", "l", "d"], "Hello world"),
        (CHATML, ["a", "▁", "▁", "b", "▁"], "a  b "),
    ],
)
def test_sentence_piece_spaces_are_right_at_the_start_and_in_the_middle(
    template: str, tokens: list[str], text: str
) -> None:
    ids = tokenizer_named("sentence-piece").convert_tokens_to_ids(tokens)
    pieces, _ = run(builder("sentence-piece", template).reply_stream(), ids)
    assert joined(pieces) == text
    pieces, _ = run(builder("sentence-piece", template).reply_stream(prior_ids=ids_of("so", "sentence-piece")), ids)
    assert joined(pieces) == "".join(tokens).replace("▁", " ")


def test_a_tokenizer_whose_bytes_are_unknown_is_decoded_by_itself() -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=["<unk>", "<|im_end|>"], show_progress=False)
    tokenizer.train_from_iterator(["the cache keeps every token that was computed"] * 3, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<|im_end|>")
    prompts = PromptBuilder(wrapped, CHATML, frozenset({wrapped.eos_token_id}))
    ids = wrapped.encode("every cachetoken keeps")
    pieces, reply = run(prompts.reply_stream(), ids)
    assert joined(pieces) == reply.text == wrapped.decode(ids)


def test_stacked_marks_do_not_hold_the_stream_back_for_ever() -> None:
    stream = builder().reply_stream()
    assert any(piece.text for i in ids_of("Z" + "\u0301" * 500) for piece in stream.push(i))


@pytest.mark.parametrize("letter", few_quick(["a", " ", "\u0301", "🙂"]))
def test_a_token_costs_the_same_however_long_the_reply_is(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_named("byte-level"), "decode", None)
    (ids, stop) = (ids_of(letter), ["xx", "stop\n"])

    def cost(num: int) -> int:
        """Lines that were run, and the code points they had before them."""
        total = 0

        def count(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal total
            if event == "line":
                total += 1 + sum(len(value) for value in frame.f_locals.values() if isinstance(value, str | bytes))
            return count

        stream, before = builder(template=KEPT_THINKING).reply_stream(stop=stop), sys.gettrace()
        sys.settrace(count)
        try:
            for _ in range(num):
                for i in ids:
                    stream.push(i)
        finally:
            sys.settrace(before)
        return total

    assert cost(800) < 9 * cost(100), "eight times the tokens, not sixty-four times the work"
