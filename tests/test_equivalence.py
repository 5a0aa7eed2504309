"""A chat with a cache says what a chat without one says, whatever is clicked in whatever order; nothing gets lost."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from equality import assert_equal_tokens
from hypothesis import HealthCheck, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from services import every_message, open_service, runtime_of

from chatcache.events import Reply, TextEvent
from chatcache.loader import LoadedModel
from chatcache.stats import FinishReason, Sampling
from storage.records import Message, Role

TIMEOUT_S = 120
TEXTS = st.sampled_from(["Hello", "Why?", "<|im_end|> typed", "漢字 🙂", "two\nlines  and  spaces", "word " * 30])


@dataclass
class Pair:
    """The same session in both services; `messages` holds its messages' ids in both, in the order they were made."""

    cached_id: str
    plain_id: str
    messages: list[tuple[str, str]]


class ChatMachine(RuleBasedStateMachine):
    """Does everything twice: with a live cache and with none."""

    loaded: LoadedModel
    num_tokens = 6

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        root = Path(self._folder.name)
        self._open = [
            open_service(self.loaded, root / "cached"),
            open_service(self.loaded, root / "plain", cache="none"),
        ]
        self.cached, self.plain = (service.__enter__() for service in self._open)
        self._last_fed: list[int] = []
        embedding = self.loaded.model.get_input_embeddings()
        self._hook = embedding.register_forward_hook(lambda _module, args, _output: self._note(args[0]))
        self.pairs = [self._new_pair("Be brief.")]
        self.pair = self.pairs[0]

    def teardown(self) -> None:
        self._hook.remove()
        for service in self._open:
            service.__exit__(None, None, None)
        self._folder.cleanup()

    @rule(text=TEXTS)
    def send(self, text: str) -> None:
        self._compare(
            self.cached.send(self.pair.cached_id, text, self._sampling()).result(TIMEOUT_S),
            self.plain.send(self.pair.plain_id, text, self._sampling()).result(TIMEOUT_S),
        )

    @rule(text=TEXTS, num_pieces=st.integers(1, 4))
    def send_and_stop(self, text: str, num_pieces: int) -> None:
        turn = self.cached.send(self.pair.cached_id, text, self._sampling(400))
        pieces = (event for event in turn.events() if isinstance(event, TextEvent))
        list(itertools.islice(pieces, num_pieces))
        turn.stop()
        cached = turn.result(TIMEOUT_S)
        plain = self.plain.send(self.pair.plain_id, text, self._sampling(cached.stats.num_completion_tokens))
        self._compare(cached, plain.result(TIMEOUT_S))

    @precondition(lambda self: self._branch())
    @rule()
    def regenerate(self) -> None:
        self._compare(
            self.cached.regenerate(self.pair.cached_id, sampling=self._sampling()).result(TIMEOUT_S),
            self.plain.regenerate(self.pair.plain_id, sampling=self._sampling()).result(TIMEOUT_S),
        )

    @precondition(lambda self: self._branch() and not self._tip_was_answered())
    @rule()
    def continue_reply(self) -> None:
        num_prior = len(self._branch()[-1].token_ids or ())
        self._compare(
            self.cached.continue_reply(self.pair.cached_id, self._sampling()).result(TIMEOUT_S),
            self.plain.continue_reply(self.pair.plain_id, self._sampling()).result(TIMEOUT_S),
            num_prior,
        )

    @precondition(lambda self: self._branch())
    @rule()
    def roll_back(self) -> None:
        self.cached.rollback(self.pair.cached_id)
        self.plain.rollback(self.pair.plain_id)

    @precondition(lambda self: self.pair.messages)
    @rule(index=st.integers(0, 1000), text=TEXTS)
    def edit(self, index: int, text: str) -> None:
        cached_id, plain_id = self.pair.messages[index % len(self.pair.messages)]
        self._compare(
            self.cached.edit(cached_id, text, self._sampling()).result(TIMEOUT_S),
            self.plain.edit(plain_id, text, self._sampling()).result(TIMEOUT_S),
        )

    @precondition(lambda self: self.pair.messages)
    @rule(index=st.integers(0, 1000))
    def select(self, index: int) -> None:
        cached_id, plain_id = self.pair.messages[index % len(self.pair.messages)]
        self.cached.select(cached_id)
        self.plain.select(plain_id)
        assert cached_id in {message.id for message in self._branch()}

    @precondition(lambda self: self.pair.messages and len(self.pairs) < 3)
    @rule(index=st.integers(0, 1000))
    def fork(self, index: int) -> None:
        cached_id, plain_id = self.pair.messages[index % len(self.pair.messages)]
        pair = Pair(self.cached.fork(cached_id).id, self.plain.fork(plain_id).id, [])
        copies = (self.cached.messages(pair.cached_id), self.plain.messages(pair.plain_id))
        pair.messages = [(mine.id, its.id) for mine, its in zip(*copies, strict=True)]
        self.pairs.append(pair)
        self.pair = pair

    @rule(index=st.integers(0, 1000))
    def open_another_session(self, index: int) -> None:
        if index % 3 == 0 and len(self.pairs) < 4:
            self.pairs.append(self._new_pair("Be brief."))
        self.pair = self.pairs[index % len(self.pairs)]

    @invariant()
    def roles_alternate_and_the_tip_is_a_reply(self) -> None:
        branch = self._branch()
        assert [message.role for message in branch] == [Role.USER, Role.ASSISTANT] * (len(branch) // 2)

    @invariant()
    def nothing_is_unreachable(self) -> None:
        for pair in self.pairs:
            assert {cached_id for cached_id, _ in pair.messages} == every_message(self.cached, pair.cached_id).keys()

    def _note(self, input_ids: torch.Tensor) -> None:
        """Without a cache every forward is fed everything: the last one tells what the reply stands on."""
        self._last_fed = input_ids.flatten().tolist()

    def _branch(self) -> tuple[Message, ...]:
        return self.cached.messages(self.pair.cached_id)

    def _tip_was_answered(self) -> bool:
        store = runtime_of(self.cached).store
        return bool(store.children("local", self.pair.cached_id, self._branch()[-1].id))

    def _sampling(self, max_new_tokens: int | None = None) -> Sampling:
        return Sampling(temperature=0.0, max_new_tokens=max_new_tokens or self.num_tokens)

    def _new_pair(self, system_prompt: str) -> Pair:
        sessions = (service.create_session(system_prompt=system_prompt) for service in (self.cached, self.plain))
        return Pair(*(session.id for session in sessions), [])

    def _compare(self, cached: Reply, plain: Reply, num_prior: int = 0) -> None:
        """`num_prior` tokens of the reply were there before the turn."""
        stats = plain.stats
        assert cached.stats.finish_reason is not FinishReason.ERROR
        assert cached.stats.num_prompt_tokens == stats.num_prompt_tokens
        assert cached.stats.num_prompt_tokens == cached.stats.num_cached_tokens + cached.stats.num_computed_tokens
        branches = (self._branch(), self.plain.messages(self.pair.plain_id))
        known = {cached_id for cached_id, _ in self.pair.messages}
        new = [(mine.id, its.id) for mine, its in zip(*branches, strict=True) if mine.id not in known]
        self.pair.messages.extend(new)
        said, reference = cached.message.token_ids or (), plain.message.token_ids or ()
        if said != reference:
            prompt_ids = self._last_fed[: stats.num_prompt_tokens - num_prior]
            assert_equal_tokens(self.loaded.model, prompt_ids, reference, said)
            reject()  # parted at a tie: from here on the two are different chats


def run(loaded: LoadedModel, num_examples: int, num_steps: int) -> None:
    run_state_machine_as_test(
        type("Machine", (ChatMachine,), {"loaded": loaded}),
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=num_steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            derandomize=True,
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_order_of_clicks_gives_the_replies_of_a_chat_without_a_cache(tiny_llama: LoadedModel) -> None:
    run(tiny_llama, num_examples=10, num_steps=15)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_so_it_is_with_the_embedded_model(embedded: LoadedModel) -> None:
    run(embedded, num_examples=2, num_steps=10)
