"""A turn computes what its cache lacks and nothing else, says what happened, and outlives failures.

The first test of the project: replies with the cache equal replies without any, on every path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from examples import few_quick

from chatcache.cache.kinds import make_session_cache
from chatcache.cache_form import CacheForm
from chatcache.engine import TurnRun
from chatcache.events import CacheEvent, Event, Phase, StatusEvent, TextEvent
from chatcache.live_caches import LiveCaches
from chatcache.loader import LoadedModel
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.prompt import PromptBuilder
from chatcache.sampler import Sampler
from chatcache.session_key import SessionKey
from chatcache.session_pool import SessionPool
from chatcache.stats import FinishReason, MissReason, Reuse, Sampling
from chatcache.template_chat import PromptMessage
from chatcache.turn_request import TurnOutcome, TurnRequest
from storage.records import Role
from tests.equality import assert_equal_tokens
from tests.tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, random_ids, tiny_model, with_model

GREEDY = Sampling(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_new_tokens=12, stop=(), seed=5
)
LOREM = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4


@pytest.fixture(autouse=True)
def _inference_mode_on_one_thread() -> Iterator[None]:
    """As on the model thread. A second thread only waits for the first in a model this small."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(num_threads)


@dataclass
class Counter:
    """What really passes through the model: the number of tokens of each forward, as its input embedding sees them."""

    forwards: list[int] = field(default_factory=list)

    def taken(self) -> int:
        total = sum(self.forwards)
        self.forwards.clear()
        return total


@pytest.fixture
def counter(tiny_llama: LoadedModel) -> Iterator[Counter]:
    counter = Counter()
    embedding = tiny_llama.model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda _m, args, _o: counter.forwards.append(args[0].numel()))
    yield counter
    handle.remove()


@dataclass
class Turned:
    request: TurnRequest
    outcome: TurnOutcome
    events: list[Event]

    @property
    def ids(self) -> tuple[int, ...]:
        return self.outcome.reply.token_ids

    @property
    def said(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextEvent))


class Chat:
    """One session driven at the engine's level: messages are kept here, and a turn is run to its end."""

    def __init__(self, loaded: LoadedModel, *, kind: str = "dynamic", pool: SessionPool | None = None) -> None:
        self.loaded = loaded
        self.prompts = PromptBuilder(loaded.tokenizer, loaded.chat_template, loaded.eos_token_ids)
        self.pool = pool or SessionPool(partial(make_session_cache, loaded.model), CacheForm(kind))
        self.messages: list[PromptMessage] = []
        self.session_id = "s"

    def send(self, text: str, sampling: Sampling = GREEDY, **options: object) -> Turned:
        self.messages.append(PromptMessage(Role.USER, text))
        return self.reply(sampling, **options)

    def reply(
        self, sampling: Sampling = GREEDY, *, prior: Sequence[int] = (), is_again: bool = False, **options: object
    ) -> Turned:
        turned = self.run(self.request(sampling, prior, is_again=is_again), **options)
        reply = turned.outcome.reply
        self.messages.append(PromptMessage(Role.ASSISTANT, reply.text, reply.reasoning, reply.token_ids))
        return turned

    def regenerate(self, sampling: Sampling = GREEDY) -> Turned:
        self.messages.pop()
        return self.reply(sampling, is_again=True)

    def continue_reply(self, sampling: Sampling = GREEDY) -> Turned:
        prior = self.messages.pop().token_ids
        assert prior is not None
        return self.reply(sampling, prior=prior)

    def request(self, sampling: Sampling, prior: Sequence[int] = (), *, is_again: bool = False) -> TurnRequest:
        """`is_again`: a turn was run on this very prompt before."""
        prompt = self.prompts.build(self.messages, system_prompt="You are a fox.", template_vars={})
        return TurnRequest(
            owner="ann",
            session_id=self.session_id,
            prompt_ids=prompt.token_ids,
            prior_reply_ids=tuple(prior),
            sampling=sampling,
            rewrite_index=prompt.rewrite_index,
            starts_in_reasoning=prompt.starts_in_reasoning,
            num_known_tokens=len(prompt.token_ids) - 1 if is_again or prior else prompt.num_history_tokens,
        )

    def run(
        self, request: TurnRequest, *, should_stop: Callable[[TurnRun, list[Event]], bool] = lambda *_: False
    ) -> Turned:
        events: list[Event] = []
        turn = self.start(request, events, lambda: should_stop(turn, events))
        while not turn.step():
            pass
        assert turn.outcome is not None
        return Turned(request, turn.outcome, events)

    def start(
        self, request: TurnRequest, events: list[Event], should_stop: Callable[[], bool] = lambda: False
    ) -> TurnRun:
        chunks = ChunkSchedule.of(self.loaded.model)
        return TurnRun(self.loaded, self.prompts, self.pool, request, events.append, should_stop, None, chunks)

    @property
    def num_cached_tokens(self) -> int:
        return sum(live.num_tokens for live in self.pool.report() if live.session_id == self.session_id)


Script = Callable[[Chat], list[Turned]]


def sends(chat: Chat) -> list[Turned]:
    return [chat.send(text) for text in ("Hello.", "And you?", "Grüße 🙂", "1, 22, 333", LOREM)]


def regenerates(chat: Chat) -> list[Turned]:
    return [chat.send("Hello."), chat.send("And you?"), chat.regenerate(), chat.regenerate(), chat.send("Go on.")]


def rolls_back(chat: Chat) -> list[Turned]:
    turns = [chat.send("Hello."), chat.send("And you?"), chat.send("Why?")]
    del chat.messages[2:]
    return [*turns, chat.send("Something else.")]


def edits_in_the_middle(chat: Chat) -> list[Turned]:
    turns = [chat.send("Hello."), chat.send("And you, my friend?"), chat.send("Why?")]
    del chat.messages[2:]
    turns.append(chat.send("And you, my enemy?"))
    return [*turns, chat.send("Why not?")]


def selects_the_older_branch(chat: Chat) -> list[Turned]:
    turns = [chat.send("Hello."), chat.send("And you?")]
    older = list(chat.messages)
    del chat.messages[2:]
    turns.append(chat.send("A new branch."))
    chat.messages = older
    return [*turns, chat.send("Back again.")]


def stops_and_continues(chat: Chat) -> list[Turned]:
    turns = [chat.send("Hello.", should_stop=lambda _run, events: num_texts(events) >= 3), chat.continue_reply()]
    return [*turns, chat.continue_reply(), chat.send("And you?")]


def stops_at_a_string(chat: Chat) -> list[Turned]:
    reply = chat.send("Hello.", replace(GREEDY, max_new_tokens=40))
    text = reply.outcome.reply.text
    chat.messages.pop()
    return [reply, chat.reply(replace(GREEDY, stop=(text[len(text) // 2 :][:3],))), chat.send("And you?")]


def num_texts(events: list[Event]) -> int:
    return sum(isinstance(event, TextEvent) for event in events)


@pytest.mark.parametrize(
    "script",
    [
        sends,
        regenerates,
        rolls_back,
        edits_in_the_middle,
        selects_the_older_branch,
        stops_and_continues,
        stops_at_a_string,
    ],
)
def test_replies_with_the_cache_equal_replies_without_any(tiny_llama: LoadedModel, script: Script) -> None:
    cached = script(Chat(tiny_llama))
    for turned in cached:
        stats = turned.outcome.stats
        assert stats.num_prompt_tokens == stats.num_cached_tokens + stats.num_computed_tokens
        assert stats.num_prompt_tokens == len(turned.request.prompt_ids + turned.request.prior_reply_ids)
    uncached = script(Chat(tiny_llama, kind="none"))
    for ours, reference in zip(cached, uncached, strict=True):
        assert ours.request.prompt_ids == reference.request.prompt_ids
        assert_equal_tokens(tiny_llama.model, reference.request.prompt_ids, reference.ids, ours.ids)
        assert ours.outcome.reply.text == reference.outcome.reply.text


@pytest.mark.parametrize("script", [sends, regenerates, rolls_back, stops_and_continues, stops_at_a_string])
def test_the_tokens_that_pass_through_the_model_are_those_the_stats_tell(
    tiny_llama: LoadedModel, counter: Counter, script: Script
) -> None:
    turns = script(Chat(tiny_llama))
    stats = [turned.outcome.stats for turned in turns]
    assert all(s.num_recomputed_tokens == 0 for s in stats)
    assert counter.taken() == sum(s.num_computed_tokens + s.num_completion_tokens - 1 for s in stats)


def test_each_turn_computes_only_what_was_added_since_the_caches_end(tiny_llama: LoadedModel, counter: Counter) -> None:
    chat, num_in_cache = Chat(tiny_llama), 0
    for text in ("Hello.", "And you?", "Grüße 🙂", LOREM):
        turned = chat.send(text)
        stats = turned.outcome.stats
        assert stats.num_computed_tokens == len(turned.request.prompt_ids) - num_in_cache
        assert stats.num_cached_tokens == num_in_cache
        assert counter.taken() == stats.num_computed_tokens + stats.num_completion_tokens - 1
        num_in_cache += stats.num_computed_tokens + stats.num_completion_tokens - 1
        assert chat.num_cached_tokens == num_in_cache


def test_regenerate_computes_one_token_and_gives_the_same_reply(tiny_llama: LoadedModel, counter: Counter) -> None:
    chat = Chat(tiny_llama)
    sampling = replace(GREEDY, temperature=0.8, top_p=0.9, repetition_penalty=1.1)
    chat.send("Hello.", sampling)
    first = chat.send("And you?", sampling)
    counter.taken()
    again = chat.regenerate(sampling)
    assert counter.forwards[0] == again.outcome.stats.num_computed_tokens == 1
    assert again.ids == first.ids
    assert again.outcome.stats.miss_reason is None
    assert chat.regenerate(replace(sampling, seed=6)).ids != first.ids


def test_rollback_and_resend_computes_only_the_new_message(tiny_llama: LoadedModel, counter: Counter) -> None:
    chat = Chat(tiny_llama)
    chat.send("Hello.")
    chat.send("And you?")
    after_first = chat.num_cached_tokens
    chat.send("Why?")
    del chat.messages[4:]
    counter.taken()
    turned = chat.send("Zebra!")
    assert turned.outcome.stats.num_cached_tokens >= after_first
    assert counter.forwards[0] <= len(turned.request.prompt_ids) - after_first


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_and_continue_give_the_reply_of_an_uninterrupted_run(tiny_llama: LoadedModel, temperature: float) -> None:
    sampling = replace(GREEDY, temperature=temperature, repetition_penalty=1.2, max_new_tokens=24)
    whole = Chat(tiny_llama).send("Hello.", sampling)
    chat = Chat(tiny_llama)
    first = chat.send("Hello.", sampling, should_stop=lambda _run, events: num_texts(events) >= 5)
    assert first.outcome.stats.finish_reason is FinishReason.CANCELLED
    assert 0 < len(first.ids) < len(whole.ids)
    second = chat.continue_reply(replace(sampling, max_new_tokens=24 - first.outcome.stats.num_completion_tokens))
    assert second.ids == whole.ids
    assert second.outcome.reply.text == whole.outcome.reply.text
    assert first.said + second.said == whole.said


def test_the_reply_equals_that_of_generate(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    sampling = replace(GREEDY, repetition_penalty=1.2, max_new_tokens=30)
    turned = chat.send(LOREM, sampling)
    ids = torch.tensor([turned.request.prompt_ids])
    expected = tiny_llama.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        repetition_penalty=1.2,
        max_new_tokens=30,
        eos_token_id=sorted(chat.prompts.end_token_ids),
    )[0, ids.shape[1] :].tolist()
    reference = [i for i in expected if i not in chat.prompts.end_token_ids]
    assert_equal_tokens(tiny_llama.model, turned.request.prompt_ids, reference, turned.ids)


def test_turns_that_take_turns_give_the_replies_they_give_alone(tiny_llama: LoadedModel) -> None:
    sampling = replace(GREEDY, temperature=0.9)
    texts = {"a": "Hello.", "b": LOREM, "c": "Grüße 🙂"}
    alone = {name: Chat(tiny_llama).send(text, sampling).ids for name, text in texts.items()}
    pool = SessionPool(partial(make_session_cache, tiny_llama.model), CacheForm("dynamic"))
    turns = {}
    for name, text in texts.items():
        chat = Chat(tiny_llama, pool=pool)
        chat.session_id, chat.messages = name, [PromptMessage(Role.USER, text)]
        turns[name] = chat.start(chat.request(sampling), [])
    running = list(turns.values())
    while running:
        running = [turn for turn in running if not turn.step()]
    outcomes = {name: turn.outcome for name, turn in turns.items()}
    assert {name: outcome.reply.token_ids for name, outcome in outcomes.items() if outcome} == alone


@pytest.mark.parametrize("name", [*few_quick(FULL_ATTENTION), *few_quick(SLIDING), *few_quick(RECURRENT)])
def test_on_every_architecture_replies_with_the_cache_equal_replies_without(tiny_llama: LoadedModel, name: str) -> None:
    loaded = with_model(tiny_llama, tiny_model(name), eos_token_ids=frozenset())
    prompt, more = tuple(random_ids(40, seed=1)), tuple(random_ids(9, seed=2))

    def script(kind: str) -> list[Turned]:
        chat = Chat(loaded, kind=kind)
        chat.prompts.end_token_ids = frozenset()
        request = TurnRequest("ann", "s", prompt, (), GREEDY)
        turns = [chat.run(request), chat.run(replace(request, num_known_tokens=len(prompt) - 1))]
        known = prompt + turns[0].ids
        turns.append(chat.run(replace(request, prompt_ids=known + more, num_known_tokens=len(known) - 1)))
        return [*turns, chat.run(replace(request, prompt_ids=prompt[:20] + more, num_known_tokens=20))]

    cached, uncached = script("dynamic"), script("none")
    for ours, reference in zip(cached, uncached, strict=True):
        assert_equal_tokens(loaded.model, reference.request.prompt_ids, reference.ids, ours.ids)
    stats = [turned.outcome.stats for turned in cached]
    assert stats[2].num_cached_tokens == len(prompt + cached[0].ids) - 1
    if name in RECURRENT:
        assert [s.num_computed_tokens for s in stats] == [len(prompt), 1, len(more) + 1, 20 + len(more)]
        assert [s.miss_reason for s in stats[1:]] == [None, None, MissReason.NOT_CROPPABLE]
    else:
        assert [s.num_computed_tokens for s in stats] == [len(prompt), 1, len(more) + 1, len(more)]


# ------------------------------------------------------------------------ ends


def test_a_reply_ends_at_its_length(tiny_llama: LoadedModel) -> None:
    turned = Chat(tiny_llama).send("Hello.", replace(GREEDY, max_new_tokens=1))
    assert turned.outcome.stats.finish_reason is FinishReason.LENGTH
    assert turned.outcome.stats.num_completion_tokens == 1
    assert turned.outcome.stats.decode_tokens_per_s is None


def ending(chat: Chat, text: str) -> TurnRequest:
    """A request whose prompt the model answers with the terminator at its second token."""
    request = replace(GREEDY, max_new_tokens=2)
    chat.messages.append(PromptMessage(Role.USER, text))
    built = chat.request(request)
    second = chat.run(built).outcome.reply.token_ids[1]
    chat.prompts.end_token_ids = chat.prompts.end_token_ids | {second}
    return chat.request(GREEDY)


def test_a_terminator_ends_the_reply_counts_as_sampled_and_is_not_part_of_it(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    request = ending(chat, "Hello.")
    turned = chat.run(request)
    assert turned.outcome.stats.finish_reason is FinishReason.STOP
    assert turned.outcome.stats.num_completion_tokens == 2
    assert len(turned.ids) == 1
    assert chat.num_cached_tokens == len(request.prompt_ids) + 1


def test_a_stop_string_leaves_reply_and_cache_alike(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    whole = chat.send("Hello.", replace(GREEDY, max_new_tokens=40)).outcome.reply.text
    at = len(whole) // 2
    stop = whole[at : at + 4]
    turned = Chat(tiny_llama).send("Hello.", replace(GREEDY, max_new_tokens=40, stop=(stop,)))
    reply = turned.outcome.reply
    assert turned.outcome.stats.finish_reason is FinishReason.STOP
    assert reply.text == whole[: whole.index(stop)] == turned.said
    chat = Chat(tiny_llama)
    chat.send("Hello.", replace(GREEDY, max_new_tokens=40, stop=(stop,)))
    kept = chat.num_cached_tokens
    assert kept <= len(turned.request.prompt_ids) + len(reply.token_ids)
    following = chat.send("And you?")
    assert following.outcome.stats.num_cached_tokens == kept
    assert following.outcome.stats.miss_reason is None


def test_half_a_character_at_the_end_leaves_reply_and_cache_alike(
    tiny_llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(tiny_llama)
    scripted = [*chat.prompts.encode_reply("So "), *chat.prompts.encode_reply("🦊")]
    assert len(chat.prompts.encode_reply("🦊")) > 2
    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "choose", lambda _self, ids, _logits: scripted[len(ids) - num_prompt])
        chat.messages.append(PromptMessage(Role.USER, "Hello."))
        num_prompt = len(chat.request(GREEDY).prompt_ids)
        turned = chat.reply(replace(GREEDY, max_new_tokens=len(scripted) - 1))
    assert turned.outcome.reply.text == turned.said == "So "
    assert turned.ids == chat.prompts.encode_reply("So ")
    assert chat.num_cached_tokens == num_prompt + len(turned.ids)
    following = chat.send("And you?")
    assert (following.outcome.stats.miss_reason, following.outcome.stats.num_cached_tokens) == (
        None,
        num_prompt + len(turned.ids),
    )


def test_a_stop_request_ends_the_turn_before_the_next_forward(tiny_llama: LoadedModel, counter: Counter) -> None:
    chat = Chat(tiny_llama)
    turned = chat.send("Hello.", should_stop=lambda *_: True)
    assert counter.forwards == []
    assert turned.outcome.stats.finish_reason is FinishReason.CANCELLED
    assert turned.ids == ()


@pytest.mark.usefixtures("small_chunks")
def test_a_stop_in_the_middle_of_the_prompt_keeps_what_was_read(tiny_llama: LoadedModel, counter: Counter) -> None:
    chat = Chat(tiny_llama)
    turned = chat.send(LOREM, should_stop=lambda *_: len(counter.forwards) == 2)
    stats = turned.outcome.stats
    assert (stats.num_prompt_tokens, stats.num_computed_tokens, stats.num_cached_tokens) == (32, 32, 0)
    assert stats.num_completion_tokens == 0
    assert stats.ttft_s is None
    assert chat.num_cached_tokens == 32
    assert chat.regenerate().outcome.stats.reuse == (Reuse("live", 32),)


def test_a_full_context_ends_the_reply_with_everything_kept(tiny_llama: LoadedModel) -> None:
    num_prompt = len(Chat(tiny_llama).send("Hello.").request.prompt_ids)
    chat = Chat(replace(tiny_llama, max_context_tokens=num_prompt + 6))
    turned = chat.send("Hello.", replace(GREEDY, max_new_tokens=6))
    assert turned.outcome.stats.finish_reason is FinishReason.CONTEXT_FULL
    assert turned.outcome.stats.num_completion_tokens == 6
    assert chat.continue_reply().outcome.stats.finish_reason is FinishReason.CONTEXT_FULL
    assert chat.messages[-1].text == turned.outcome.reply.text


# ---------------------------------------------------------------------- chunks


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkSchedule, "num_tokens", lambda *_: 16)


@pytest.mark.usefixtures("small_chunks")
def test_a_prompt_is_read_in_chunks_and_its_last_token_alone(tiny_llama: LoadedModel, counter: Counter) -> None:
    turned = Chat(tiny_llama).send("Hello." * 10)
    num_prompt = len(turned.request.prompt_ids)
    chunks = [16] * ((num_prompt - 1) // 16) + [(num_prompt - 1) % 16] * ((num_prompt - 1) % 16 > 0)
    assert counter.forwards[: len(chunks) + 1] == [*chunks, 1]
    done = [e.done for e in turned.events if isinstance(e, StatusEvent) and e.phase is Phase.PREFILL]
    assert done == [0, *(sum(chunks[: i + 1]) for i in range(len(chunks))), num_prompt]


@pytest.mark.parametrize(
    ("seconds_per_token", "position", "expected"),
    [
        (1e-3, 0, 256),
        (1e-3, 1000, 128),
        (1e-3, 7000, 32),
        (1e-9, 0, 4096),
        (10.0, 0, 16),
    ],
)
def test_chunks_shrink_as_the_context_grows(seconds_per_token: float, position: int, expected: int) -> None:
    schedule = ChunkSchedule(seconds_per_token, seconds_per_token / 1000)
    assert schedule.num_tokens(position, 10**6) == schedule.num_tokens(position, expected * 5 // 4 + 1) == expected
    assert schedule.num_tokens(position, expected * 5 // 4) == expected * 5 // 4
    assert schedule.num_tokens(position, 3) == 3


def test_chunks_are_the_same_for_the_same_model(tiny_llama: LoadedModel) -> None:
    first, second = ChunkSchedule.of(tiny_llama.model), ChunkSchedule.of(tiny_llama.model)
    assert first == second
    assert first.seconds_per_token > 0
    assert first.seconds_per_token_and_position > 0


# --------------------------------------------------------------------- telling


def test_the_events_are_prefill_then_decode_once_then_the_text_of_the_reply(tiny_llama: LoadedModel) -> None:
    turned = Chat(tiny_llama).send("Hello.", replace(GREEDY, max_new_tokens=30))
    phases = [event.phase for event in turned.events if isinstance(event, StatusEvent)]
    assert phases.count(Phase.DECODE) == 1
    assert phases == [*[Phase.PREFILL] * (len(phases) - 1), Phase.DECODE]
    first_text = next(i for i, event in enumerate(turned.events) if isinstance(event, TextEvent))
    assert turned.events.index(StatusEvent(Phase.DECODE)) < first_text
    assert turned.said == turned.outcome.reply.text


def test_the_stats_tell_times_kind_bytes_and_seed(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    chat.messages.append(PromptMessage(Role.USER, "Hello."))
    waited_s = 5.0
    request = replace(chat.request(GREEDY), submitted_s=time.perf_counter() - waited_s)
    stats = chat.run(request).outcome.stats
    assert stats.ttft_s is not None
    assert stats.prefill_s is not None
    assert stats.ttft_s >= waited_s + stats.prefill_s > waited_s
    assert stats.decode_tokens_per_s is not None
    assert stats.decode_tokens_per_s > 1
    assert (stats.cache_kind, stats.seed) == ("dynamic", 5)
    assert stats.cache_bytes == sum(live.num_bytes for live in chat.pool.report()) > 0


def test_a_changed_history_is_a_miss_at_the_first_other_token(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    chat.send("Hello.")
    before = chat.send("And you, my friend?").request.prompt_ids
    chat.messages[2] = PromptMessage(Role.USER, "And you, my enemy?")
    turned = chat.send("Why?")
    at = next(i for i, (a, b) in enumerate(zip(before, turned.request.prompt_ids, strict=False)) if a != b)
    stats = turned.outcome.stats
    assert (stats.miss_reason, stats.miss_index, stats.num_cached_tokens) == (MissReason.HISTORY, at, at)
    told = [event for event in turned.events if isinstance(event, CacheEvent)]
    assert [(event.kind, event.token_index) for event in told] == [("history", at)]
    assert f"{stats.num_computed_tokens} tokens" in told[0].message


def test_what_was_never_computed_is_not_missed(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    assert chat.send("Hello.").outcome.stats.miss_reason is None
    assert chat.send("And you, my friend?").outcome.stats.miss_reason is None
    del chat.messages[2:]
    assert chat.send("And you, my enemy?").outcome.stats.miss_reason is None
    chat.pool.drop(SessionKey("ann", "s"))
    again = chat.regenerate().outcome.stats
    assert (again.miss_reason, again.miss_index) == (MissReason.NO_CACHE, 0)


def test_what_the_template_rewrote_is_named_as_the_reason(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    first = chat.send("Hello.")
    fed = first.request.prompt_ids + first.ids
    at = len(fed) - 4
    rewritten = (*fed[:at], 300, *fed[at + 1 :], 301, 302)
    request = replace(first.request, prompt_ids=rewritten, rewrite_index=at, num_known_tokens=len(rewritten) - 1)
    turned = chat.run(request)
    assert turned.outcome.stats.miss_reason is MissReason.TEMPLATE
    assert turned.outcome.stats.miss_index == at
    assert [e.kind for e in turned.events if isinstance(e, CacheEvent)] == ["template"]


def test_a_fork_of_a_chat_starts_from_a_copy_of_its_cache(tiny_llama: LoadedModel, counter: Counter) -> None:
    chat = Chat(tiny_llama)
    chat.send("Hello.")
    chat.send("And you?")
    fork = Chat(tiny_llama, pool=chat.pool)
    fork.session_id, fork.messages = "fork", list(chat.messages)
    num_held = chat.num_cached_tokens
    counter.taken()
    stats = fork.send("Why?").outcome.stats
    assert stats.reuse == (Reuse("prefix", num_held),)
    assert counter.taken() == stats.num_computed_tokens + stats.num_completion_tokens - 1
    assert chat.num_cached_tokens == num_held


def test_without_a_cache_every_step_forwards_everything(tiny_llama: LoadedModel, counter: Counter) -> None:
    turned = Chat(tiny_llama, kind="none").send("Hello.", replace(GREEDY, max_new_tokens=3))
    num_prompt = len(turned.request.prompt_ids)
    assert counter.forwards == [num_prompt, num_prompt + 1, num_prompt + 2]
    stats = turned.outcome.stats
    assert (stats.cache_kind, stats.cache_bytes, stats.num_cached_tokens) == ("none", 0, 0)


# -------------------------------------------------------------------- failures


@pytest.fixture
def failing(tiny_llama: LoadedModel) -> Iterator[Callable[..., None]]:
    """Lets the second layer raise in the forwards whose numbers are given, after the first layer took its tokens."""
    handles = []

    def fail(*numbers: int) -> None:
        num_forwards = 0

        def hook(*_: object) -> None:
            nonlocal num_forwards
            num_forwards += 1
            if num_forwards - 1 in numbers:
                raise RuntimeError("not enough memory: you tried to allocate")

        handles.append(tiny_llama.model.model.layers[1].register_forward_pre_hook(hook))

    yield fail
    for handle in handles:
        handle.remove()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("number", [0, 1, 3, 5])
def test_a_failed_forward_is_repaired_and_tried_again(
    tiny_llama: LoadedModel, counter: Counter, failing: Callable[..., None], number: int
) -> None:
    whole = Chat(tiny_llama).send("Hello. How are you?")
    num_forwards = len(counter.forwards)
    assert number < num_forwards
    counter.taken()
    chat = Chat(tiny_llama)
    failing(number)
    turned = chat.send("Hello. How are you?")
    stats = turned.outcome.stats
    assert turned.ids == whole.ids
    assert stats.finish_reason is whole.outcome.stats.finish_reason
    assert stats.num_recomputed_tokens > 0
    assert stats.num_prompt_tokens == len(turned.request.prompt_ids)
    assert counter.taken() == stats.num_computed_tokens + stats.num_recomputed_tokens + stats.num_completion_tokens - 1
    assert [event.kind for event in turned.events if isinstance(event, CacheEvent)] == ["repair"]
    assert chat.send("And you?").outcome.stats.miss_reason is None


@pytest.mark.parametrize("kind", ["dynamic", "none"])
def test_a_forward_that_fails_twice_ends_the_turn_with_the_text_so_far(
    tiny_llama: LoadedModel, failing: Callable[..., None], kind: str
) -> None:
    whole = Chat(tiny_llama).send("Hello.")
    chat = Chat(tiny_llama, kind=kind)
    failing(6, 7)
    turned = chat.send("Hello.")
    stats = turned.outcome.stats
    assert stats.finish_reason is FinishReason.ERROR
    assert 0 < len(turned.ids) < len(whole.ids)
    assert whole.outcome.reply.text.startswith(turned.outcome.reply.text)
    assert "not enough memory" in stats.fallbacks[0]
    assert stats.num_prompt_tokens == stats.num_cached_tokens + stats.num_computed_tokens
    assert chat.continue_reply(replace(GREEDY, max_new_tokens=12 - len(turned.ids))).ids == whole.ids


@pytest.mark.parametrize("kind", ["dynamic", "none"])
def test_logits_that_are_not_finite_end_the_turn_and_their_cache_is_not_trusted(
    tiny_llama: LoadedModel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(tiny_llama, kind=kind)
    chat.send("Hello.")
    head = tiny_llama.model.lm_head
    with monkeypatch.context() as patch:
        patch.setattr(head, "forward", lambda hidden: torch.full((*hidden.shape[:2], 400), float("nan")))
        turned = chat.send("And you?")
    assert turned.outcome.stats.finish_reason is FinishReason.ERROR
    assert "not finite" in turned.outcome.stats.fallbacks[0]
    assert turned.ids == ()
    assert chat.num_cached_tokens == 0
    again = chat.regenerate()
    assert again.outcome.stats.finish_reason is not FinishReason.ERROR
    assert again.outcome.stats.miss_reason is MissReason.NO_CACHE


def test_a_turn_cancelled_from_outside_keeps_text_and_cache(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    chat.messages.append(PromptMessage(Role.USER, "Hello."))
    turn = chat.start(chat.request(GREEDY), [])
    for _ in range(5):
        assert not turn.step()
    so_far = turn.partial()
    outcome = turn.abandon(CancelledError())
    assert outcome.stats.finish_reason is FinishReason.CANCELLED
    assert outcome.reply == so_far
    assert not any(live.is_pinned for live in chat.pool.report())
    assert chat.num_cached_tokens > 0


def test_a_turn_cancelled_before_it_began_touches_no_cache(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    chat.send("Hello.")
    held = chat.num_cached_tokens
    chat.messages.append(PromptMessage(Role.USER, "And you?"))
    outcome = chat.start(chat.request(GREEDY), []).abandon(CancelledError())
    assert outcome.stats.finish_reason is FinishReason.CANCELLED
    assert chat.num_cached_tokens == held


def test_an_exception_outside_the_forward_ends_the_turn_with_a_sound_cache(
    tiny_llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(tiny_llama)
    chat.messages.append(PromptMessage(Role.USER, "Hello."))
    turn = chat.start(chat.request(GREEDY), [])
    for _ in range(4):
        turn.step()
    with monkeypatch.context() as patch:
        patch.setattr(turn._sampler, "choose", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError) as caught:
            turn.step()
    outcome = turn.abandon(caught.value)
    assert outcome.stats.finish_reason is FinishReason.ERROR
    assert "by zero" in outcome.stats.fallbacks[0]
    assert outcome.reply.text
    assert chat.reply().outcome.stats.num_computed_tokens == 1


def test_what_chats_share_is_asked_for_when_all_is_said_and_of_a_live_chat_not_at_all(
    tiny_llama: LoadedModel, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(tiny_llama)
    cuts: list[Sequence[int]] = []
    monkeypatch.setattr(LiveCaches, "save", lambda _live, _key, cuts_of_turn=(): cuts.append(cuts_of_turn))
    asked: list[int] = []

    def num_shared_tokens() -> int:
        asked.append(len(counter.forwards))
        return 7

    turns, num_forwards = [], []
    for text in ("Hello.", "And you?"):
        chat.messages.append(PromptMessage(Role.USER, text))
        turns.append(chat.run(replace(chat.request(GREEDY), num_shared_tokens=num_shared_tokens)))
        chat.messages.append(PromptMessage(Role.ASSISTANT, turns[-1].said, None, turns[-1].ids))
        num_forwards.append(len(counter.forwards))
    first, second = (turn.outcome.stats.num_prompt_tokens - 1 for turn in turns)
    assert cuts == [(7, first), (second,)]
    assert asked == num_forwards[:1]


def test_of_a_turn_that_is_stopped_before_it_has_a_cache_nobody_asks_what_chats_share(tiny_llama: LoadedModel) -> None:
    chat = Chat(tiny_llama)
    chat.messages.append(PromptMessage(Role.USER, "Hello."))
    asked: list[TurnRequest] = []

    def num_shared_tokens() -> int:
        asked.append(request)
        return 7

    request = replace(chat.request(GREEDY), num_shared_tokens=num_shared_tokens)
    assert chat.run(request, should_stop=lambda *_: True).outcome.stats.finish_reason is FinishReason.CANCELLED
    assert asked == []
