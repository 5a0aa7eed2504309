"""Guessed tokens change how many forwards a reply takes, and nothing else: not its tokens, not what the cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chatcache.cache.kinds import make_session_cache
from chatcache.cache.quantized_layer import MAX_TAIL_TOKENS
from chatcache.cache.session_cache import MAX_CANDIDATE_TOKENS, SessionCache
from chatcache.cache_form import CacheForm
from chatcache.candidates import FIRST_LENGTH, FIRST_PAUSE, MAX_FAILURES, MAX_LENGTH, GuessLength, PromptLookup
from chatcache.engine import CANNOT_GUESS, TurnRun
from chatcache.errors import InvalidInputError
from chatcache.events import CacheEvent, Event
from chatcache.loader import LoadedModel
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.prompt import PromptBuilder
from chatcache.sampler import Sampler
from chatcache.session_pool import SessionPool
from chatcache.stats import FinishReason, Sampling
from chatcache.template_chat import PromptMessage
from chatcache.turn_request import TurnRequest
from storage.records import Role
from tests.equality import assert_equal_tokens
from tests.services import counted_forwards, open_service
from tests.tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, random_ids, tiny_model, with_model

KINDS = ("dynamic", "quantized-int8", "quantized-int4")
QUICK = [("mistral", "dynamic"), ("gemma3", "quantized-int8"), ("gpt-oss", "quantized-int4")]
"""Beside `llama-gqa` in every kind; the rest of the matrix is slow."""
MATRIX = [
    pytest.param(name, kind, marks=() if name == "llama-gqa" or (name, kind) in QUICK else pytest.mark.slow)
    for name in (*FULL_ATTENTION, *SLIDING)
    for kind in (*KINDS, "quantized-fp8")
]
GREEDY = Sampling(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_new_tokens=40, stop=(), seed=5
)
SAMPLED = replace(GREEDY, temperature=0.6, top_p=0.95, seed=11)


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Scripted:
    """Stands in for `PromptLookup` where a test decides what is guessed: `reply` with every `period`-th token wrong."""

    def __init__(self, num_prompt_tokens: int, reply: Sequence[int], period: int, offset: int = 1) -> None:
        self.num_drafted = 0
        self._num_prompt_tokens = num_prompt_tokens
        self._guesses = [
            (token + offset) % 384 if index % period == period - 1 else token for index, token in enumerate(reply)
        ]

    def guess(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        start = len(token_ids) - self._num_prompt_tokens
        return tuple(self._guesses[start : start + min(7, max_tokens)])

    def note(self, num_guessed: int, _num_accepted: int) -> None:
        self.num_drafted += num_guessed


def loaded_with(model: torch.nn.Module, tiny_llama: LoadedModel) -> LoadedModel:
    return with_model(tiny_llama, model, eos_token_ids=frozenset())


class Chat:
    """One session at the engine's level; prompts are ids."""

    def __init__(self, loaded: LoadedModel, kind: str = "dynamic") -> None:
        self.loaded = loaded
        self.prompts = PromptBuilder(loaded.tokenizer, loaded.chat_template, loaded.eos_token_ids)
        self.cache = make_session_cache(loaded.model, kind)
        self.pool = SessionPool(lambda _kind: self.cache, CacheForm(kind))
        self.events: list[Event] = []

    def run(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling = GREEDY,
        *,
        prompt_lookup: bool = False,
        prior: Sequence[int] = (),
        script: Scripted | None = None,
        num_steps: int | None = None,
    ) -> TurnRun:
        request = TurnRequest("ann", "s", tuple(prompt_ids), tuple(prior), sampling, prompt_lookup=prompt_lookup)
        steps = iter(range(10**9 if num_steps is None else num_steps))
        run = TurnRun(
            self.loaded,
            self.prompts,
            self.pool,
            request,
            self.events.append,
            should_stop=lambda: next(steps, None) is None,
            decode_step=None,
            chunks=ChunkSchedule.of(self.loaded.model),
        )
        if script is not None:
            run._feed.lookup = script  # type: ignore[assignment]
        while not run.step():
            pass
        assert run.outcome is not None
        return run


def reply_of(run: TurnRun) -> tuple[int, ...]:
    assert run.outcome is not None
    return run.outcome.reply.token_ids


def assert_same_content(one: SessionCache, other: SessionCache) -> None:
    assert list(one.token_ids) == list(other.token_ids)
    for mine, its in zip(one.export(0, one.num_tokens).layers, other.export(0, other.num_tokens).layers, strict=True):
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[name], its[name]) for name in mine)


# ---------------------------------------------------------------- how much is guessed


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([(3, 3)], GuessLength(5)),
        ([(3, 3), (5, 5)], GuessLength(7)),
        ([(24, 24)], GuessLength(MAX_LENGTH)),
        ([(2, 2)], GuessLength(4)),  # the text to copy from had ended
        ([(3, 1)], GuessLength(2)),
        ([(3, 0)], GuessLength(2, 1)),
        ([(3, 0), (2, 0), (1, 0)], GuessLength(1, 3)),
        ([(3, 0), (2, 2)], GuessLength(4)),
        ([(3, 0)] * MAX_FAILURES, GuessLength(1, MAX_FAILURES - 1, FIRST_PAUSE, 2 * FIRST_PAUSE)),
    ],
)
def test_the_length_follows_what_was_right(results: list[tuple[int, int]], expected: GuessLength) -> None:
    length = GuessLength()
    for num_guessed, num_accepted in results:
        length = length.after(num_guessed, num_accepted)
    assert length == expected


def test_after_long_failure_it_pauses_ever_longer_and_is_tried_again() -> None:
    lookup, ids = PromptLookup(), [5, 6, 7, 8, 9, 5, 6]
    steps = [len(guess) for _ in range(60) if (guess := lookup.guess(ids, 31)) is not None]
    assert set(steps) == {FIRST_LENGTH}
    lengths = []
    for _ in range(100):
        guess = lookup.guess(ids, 31)
        lengths.append(len(guess))
        if guess:
            lookup.note(len(guess), 0)
    assert lengths == [3, 2, 1, 1, *[0] * 16, 1, *[0] * 32, 1, *[0] * 46]
    assert lookup.num_drafted == 9


def test_a_guess_is_what_followed_the_same_words_before_and_within_its_limit() -> None:
    ids = [*range(3000), 41, 42]
    assert PromptLookup().guess(ids, 31) == (43, 44, 45)
    assert PromptLookup().guess(ids, 2) == (43, 44)
    assert PromptLookup().guess(ids, 0) == ()
    assert PromptLookup().guess([1, 2, 3], 31) == ()


# ------------------------------------------------------------------ the same reply


@pytest.mark.parametrize(("name", "kind"), MATRIX)
def test_the_reply_is_the_same_whatever_is_guessed(name: str, kind: str, tiny_llama: LoadedModel) -> None:
    loaded, prompt = loaded_with(tiny_model(name, 384), tiny_llama), random_ids(150)
    reference = Chat(loaded, kind)
    plain = reply_of(reference.run(prompt))
    for period in (1, 3, 1000):
        chat = Chat(loaded, kind)
        run = chat.run(prompt, script=Scripted(len(prompt), plain, period))
        assert chat.cache.num_tokens == reference.cache.num_tokens
        assert run.outcome is not None
        assert_equal_tokens(loaded.model, prompt, plain, reply_of(run))
        assert (run.outcome.stats.num_accepted_tokens > 0) == (period > 1)


@pytest.mark.parametrize("sampling", [SAMPLED, replace(SAMPLED, repetition_penalty=1.2, top_k=20)])
def test_a_sampled_reply_is_the_same_too(sampling: Sampling, tiny_llama: LoadedModel) -> None:
    loaded, prompt = replace(tiny_llama, eos_token_ids=frozenset()), random_ids(40)
    plain = reply_of(Chat(loaded).run(prompt, sampling))
    guessed = Chat(loaded).run(prompt, sampling, script=Scripted(len(prompt), plain, 4))
    assert reply_of(guessed) == plain
    assert guessed.outcome is not None
    assert guessed.outcome.stats.num_accepted_tokens > 15
    assert reply_of(Chat(loaded).run(prompt, sampling, prompt_lookup=True)) == plain


def test_a_run_is_what_single_choices_give() -> None:
    torch.manual_seed(3)
    sampler, logits, ids = Sampler(SAMPLED), torch.randn(6, 50), [1, 2, 3]
    singles: list[int] = []
    for row in logits:
        singles.append(sampler.choose([*ids, *singles], row))
    assert sampler.choose_run(ids, singles[:5], logits) == singles
    assert sampler.choose_run(ids, [*singles[:2], -1, singles[3]], logits[:5]) == singles[:3]
    assert sampler.choose_run(ids, [], logits[:1]) == singles[:1]


# ------------------------------------------------------------- nothing else is left


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-gqa", "dynamic"),
        ("llama-gqa", "quantized-int4"),
        pytest.param("gemma3", "quantized-int8", marks=pytest.mark.slow),
    ],
)
def test_wrong_guesses_leave_no_trace_in_any_layer(name: str, kind: str, tiny_llama: LoadedModel) -> None:
    """Two runs with the same numbers of tokens in each forward, and other wrong guesses. Past a flush."""
    loaded, prompt = loaded_with(tiny_model(name, 384), tiny_llama), random_ids(30)
    sampling = replace(GREEDY, max_new_tokens=MAX_TAIL_TOKENS + 20)
    one, other = Chat(loaded, kind), Chat(loaded, kind)
    plain = reply_of(Chat(loaded, kind).run(prompt, sampling))
    for chat, offset in ((one, 1), (other, 2)):
        assert reply_of(chat.run(prompt, sampling, script=Scripted(len(prompt), plain, 3, offset))) == plain
    assert_same_content(one.cache, other.cache)


@pytest.mark.parametrize("kind", ["quantized-int8", "quantized-int4"])
def test_no_forward_with_guesses_reaches_over_a_flush(kind: str) -> None:
    model = tiny_model("llama-gqa")
    cache = make_session_cache(model, kind)
    ids, seen = random_ids(500), []
    while cache.num_tokens < 400:
        num_settled, limit = cache.num_settled_tokens, cache.max_candidate_tokens
        seen.append(limit)
        assert 0 <= limit < MAX_CANDIDATE_TOKENS
        piece = ids[cache.num_tokens : cache.num_tokens + 1 + min(limit, 4)]
        model(input_ids=torch.tensor([piece]), cache=cache.cache, use_cache=True)
        cache.advance(piece)
        assert cache.num_tokens - max(cache.num_settled_tokens, num_settled) <= MAX_TAIL_TOKENS
        if cache.num_settled_tokens != num_settled:
            # The flush came before these tokens, just where single tokens would have met it.
            assert (cache.num_tokens - len(piece) - num_settled) == MAX_TAIL_TOKENS
    assert {1, MAX_CANDIDATE_TOKENS - 1} <= set(seen)


def test_tokens_are_counted_and_fed_once(tiny_llama: LoadedModel) -> None:
    chat, prompt = Chat(replace(tiny_llama, eos_token_ids=frozenset())), random_ids(40)
    plain = reply_of(Chat(chat.loaded).run(prompt))
    with counted_forwards(chat.loaded) as counts:
        outcome = chat.run(prompt, script=Scripted(len(prompt), plain, 5)).outcome
    assert outcome is not None
    stats = outcome.stats
    assert (stats.num_prompt_tokens, stats.num_computed_tokens, stats.num_recomputed_tokens) == (40, 40, 0)
    assert stats.num_completion_tokens == GREEDY.max_new_tokens == 40
    num_rejected = stats.num_drafted_tokens - stats.num_accepted_tokens
    assert sum(counts) == 40 + 40 - 1 + num_rejected
    assert counts[1] == 1, "the first token comes from a forward of one token"


# --------------------------------------------------------------- it is worth having


@pytest.mark.slow
def test_what_repeats_the_prompt_comes_several_tokens_a_forward(embedded: LoadedModel) -> None:
    text = (
        "Repeat this list exactly: apples, 12 pears, green tomatoes, three lemons, olive oil, rye bread, a jar of "
        "honey, black pepper, goat cheese."
    )
    loaded, sampling = embedded, replace(GREEDY, max_new_tokens=40)
    prompt = PromptBuilder(loaded.tokenizer, loaded.chat_template, loaded.eos_token_ids).build(
        [PromptMessage(Role.USER, text)], system_prompt=None, template_vars={}
    )
    outcomes = []
    for prompt_lookup in (False, True):
        with counted_forwards(loaded) as counts:
            run = Chat(loaded).run(prompt.token_ids, sampling, prompt_lookup=prompt_lookup)
        assert run.outcome is not None
        outcomes.append((run.outcome, len(counts)))
    (plain, num_plain), (guessed, num_guessed) = outcomes
    assert guessed.reply == plain.reply
    assert guessed.stats.num_accepted_tokens > num_guessed
    assert num_guessed == num_plain - guessed.stats.num_accepted_tokens


def test_free_text_never_takes_more_forwards(tiny_llama: LoadedModel) -> None:
    sampling = replace(GREEDY, temperature=2.0, max_new_tokens=100)
    numbers = []
    for prompt_lookup in (False, True):
        with counted_forwards(tiny_llama) as counts:
            run = Chat(tiny_llama).run(random_ids(60), sampling, prompt_lookup=prompt_lookup)
        assert run.outcome is not None
        numbers.append((run.outcome.stats.num_completion_tokens, len(counts)))
    assert numbers[0][0] == numbers[1][0] > 30
    assert numbers[1][1] <= numbers[0][1]


@pytest.mark.parametrize("name", RECURRENT)
def test_where_the_cache_cannot_be_cropped_it_is_off_and_says_so(name: str, tiny_llama: LoadedModel) -> None:
    chat = Chat(loaded_with(tiny_model(name, 384), tiny_llama))
    outcome = chat.run(random_ids(20), replace(GREEDY, max_new_tokens=12), prompt_lookup=True).outcome
    assert outcome is not None
    assert (outcome.stats.num_drafted_tokens, outcome.stats.fallbacks) == (0, (CANNOT_GUESS,))
    assert [event.message for event in chat.events if isinstance(event, CacheEvent)] == [CANNOT_GUESS]


def test_without_a_cache_it_is_off(tiny_llama: LoadedModel) -> None:
    outcome = Chat(tiny_llama, "none").run(random_ids(20), prompt_lookup=True).outcome
    assert outcome is not None
    assert CANNOT_GUESS in outcome.stats.fallbacks


# ------------------------------------------------- ends inside what was guessed right


def test_a_reply_ends_inside_a_right_guess_just_where_it_ends_without(tiny_llama: LoadedModel) -> None:
    loaded, prompt = replace(tiny_llama, eos_token_ids=frozenset()), random_ids(40)
    plain = reply_of(Chat(loaded).run(prompt))
    for max_new_tokens in (1, 2, 5, 8, 9, 10):
        chat = Chat(loaded)
        sampling = replace(GREEDY, max_new_tokens=max_new_tokens)
        run = chat.run(prompt, sampling, script=Scripted(len(prompt), plain, 1000))
        assert run.outcome is not None
        assert run.outcome.stats.num_completion_tokens == max_new_tokens
        again = Chat(loaded)
        assert reply_of(again.run(prompt, sampling)) == reply_of(run)
        assert list(again.cache.token_ids) == list(chat.cache.token_ids)


@pytest.mark.parametrize("length", [45, 46, 50])
def test_a_full_context_ends_it_inside_a_guess(length: int, tiny_llama: LoadedModel) -> None:
    loaded, prompt = replace(tiny_llama, eos_token_ids=frozenset(), max_context_tokens=length), random_ids(40)
    plain = reply_of(Chat(replace(loaded, max_context_tokens=2048)).run(prompt))
    runs = [Chat(loaded).run(prompt, script=script) for script in (None, Scripted(len(prompt), plain, 1000))]
    plain_outcome, guessed_outcome = (run.outcome for run in runs)
    assert plain_outcome is not None
    assert guessed_outcome is not None
    assert guessed_outcome.reply == plain_outcome.reply
    assert guessed_outcome.stats.finish_reason is plain_outcome.stats.finish_reason is FinishReason.CONTEXT_FULL


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_token_or_a_stop_string_inside_a_guess_ends_it_and_the_rest_leaves_the_cache(
    kind: str, tiny_llama: LoadedModel
) -> None:
    free = replace(tiny_llama, eos_token_ids=frozenset())
    prompt = random_ids(40)
    plain = Chat(free, kind).run(prompt).outcome
    assert plain is not None
    ids, text = plain.reply.token_ids, plain.reply.text
    # A token that occurs late and a string from the middle of the text.
    end_id = next(token for index, token in enumerate(ids) if index > 10 and token not in ids[:index])
    cases = [
        (replace(free, eos_token_ids=frozenset({end_id})), GREEDY),
        (free, replace(GREEDY, stop=(text[len(text) // 3 :][:4],))),
    ]
    for loaded, sampling in cases:
        chat, reference = Chat(loaded, kind), Chat(loaded, kind)
        run = chat.run(prompt, sampling, script=Scripted(len(prompt), ids, 1000))
        without = reference.run(prompt, sampling)
        assert run.outcome is not None
        assert without.outcome is not None
        assert run.outcome.stats.finish_reason is FinishReason.STOP
        assert run.outcome.reply == without.outcome.reply
        assert run.outcome.stats.num_completion_tokens == without.outcome.stats.num_completion_tokens
        assert list(chat.cache.token_ids) == list(reference.cache.token_ids)


def test_a_forward_that_fails_with_guesses_in_it_is_repaired(
    tiny_llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, prompt = replace(tiny_llama, eos_token_ids=frozenset()), random_ids(40)
    plain = reply_of(Chat(loaded).run(prompt))
    layer, calls = loaded.model.model.layers[1], []
    forward = layer.forward

    def failing(hidden: torch.Tensor, *args: object, **options: object) -> object:
        calls.append(hidden.shape[1])
        if len(calls) == 6:
            raise ValueError("a bad day")
        return forward(hidden, *args, **options)

    monkeypatch.setattr(layer, "forward", failing)
    run = Chat(loaded).run(prompt, script=Scripted(len(prompt), plain, 1000))
    assert calls[5] > 1
    assert reply_of(run) == plain


# ---------------------------------------------------------------------- in a chat


def test_a_chat_with_the_setting_says_what_one_without_says(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    said: list[list[str]] = []
    accepted = 0
    for settings in ({}, {"prompt_lookup": True}):
        with open_service(tiny_llama, tmp_path / f"data-{len(settings)}") as service:
            sampling = Sampling(temperature=0.0, max_new_tokens=60)
            session = service.create_session("You are a fox.", sampling=sampling, settings=settings)
            replies = [service.send(session.id, "The quick brown fox. The quick brown fox.").result()]
            replies.append(service.continue_reply(session.id).result())
            replies.append(service.regenerate(session.id).result())
            service.rollback(session.id)
            replies.append(service.send(session.id, "Again, the lazy dog.").result())
            said.append([reply.message.text for reply in replies])
            accepted += sum(reply.stats.num_accepted_tokens for reply in replies)
            assert replies[2].stats.num_computed_tokens == 1
    assert said[0] == said[1]
    assert accepted > 0


def test_the_setting_is_true_or_false(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service, pytest.raises(InvalidInputError, match="prompt_lookup"):
        service.create_session(settings={"prompt_lookup": 3})
