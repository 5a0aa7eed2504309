"""Two owners at once, little memory, a small disk, restarts, damage: no reply is wrong, nothing hangs or is left over.

What is done, and in which order, is drawn from a seed. How threads meet is not: each run is another one.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from services import every_message, open_service, runtime_of
from test_damage import flip, remove
from test_removed_for_good import num_seen
from tiny_models import tiny_model, with_model

from chatcache.chat import LOCAL_OWNER, ChatService
from chatcache.errors import InvalidInputError, NotFoundError, SessionBusyError
from chatcache.events import TextEvent
from chatcache.loader import LoadedModel
from chatcache.stats import FinishReason, Sampling
from chatcache.turn import Turn
from storage.records import Message, Role

TIMEOUT_S = 60
SHORT = Sampling(temperature=0.0, max_new_tokens=12)
LONG = Sampling(temperature=0.0, max_new_tokens=60)
SYSTEM = "You are a careful assistant. " * 6
BEGINNINGS = ("Please tell me about good soup.", "word " * 30, "Why?")
MEMORY_BYTES = (None, 400_000, 600_000, 1_000_000)
QUOTA_BYTES = (2**30, 250_000, 60_000)
NUM_STEPS = 30
MODELS = ("llama-gqa", "lfm2", "gemma3", "mamba2")
LEAST_LEAD = 1e-3
"""By so much the best logit leads where rounding cannot have decided."""
NUM_UNSURE = 5
"""Of a turn's last tokens one may have ended it, and up to four been part of a character: what is left of that is
encoded anew."""
REFUSED = (SessionBusyError, NotFoundError, InvalidInputError)


@dataclass(frozen=True, slots=True)
class Chat:
    owner: str
    id: str


class RoughUse:
    """One service after another on one folder. `chats` may be added to and lost by any thread."""

    def __init__(self, loaded: LoadedModel, data_dir: Path, seed: int) -> None:
        self.source = random.Random(seed)
        self.is_damaged = False
        self.chats: list[Chat] = []
        self._loaded = loaded
        self._data_dir = data_dir
        self._open()

    def run(self) -> None:
        for owner in (LOCAL_OWNER, LOCAL_OWNER, "other"):
            self.begin(self.source, owner)
        for _ in range(NUM_STEPS):
            self.step(self.source, (*ANY_TIME, *ALONE))
        self.restart(self.source)
        self.check()

    def step(self, source: random.Random, steps: Sequence[Step]) -> None:
        if chats := list(self.chats):
            with suppress(*REFUSED):
                source.choice(steps)(self, source, source.choice(chats))
        else:
            self.begin(source, LOCAL_OWNER)

    def close(self) -> None:
        self._opened.close()

    # Steps for any thread

    def begin(self, source: random.Random, owner: str) -> None:
        service = self._service.for_owner(owner)
        self.chats.append(Chat(owner, service.create_session(system_prompt=source.choice([SYSTEM, SYSTEM, None])).id))

    def send(self, source: random.Random, chat: Chat) -> None:
        self._finish(self._of(chat).send(chat.id, self._text(source), SHORT))

    def stop(self, source: random.Random, chat: Chat) -> None:
        turn = self._of(chat).send(chat.id, self._text(source), LONG)
        pieces = (event for event in turn.events() if isinstance(event, TextEvent))
        list(itertools.islice(pieces, source.choice([0, 0, 1, 3])))
        turn.stop()
        self._finish(turn)

    def regenerate(self, _source: random.Random, chat: Chat) -> None:
        self._finish(self._of(chat).regenerate(chat.id, sampling=SHORT))

    def continue_reply(self, _source: random.Random, chat: Chat) -> None:
        self._finish(self._of(chat).continue_reply(chat.id, SHORT))

    def edit(self, source: random.Random, chat: Chat) -> None:
        if messages := self._of(chat).messages(chat.id):
            self._finish(self._of(chat).edit(source.choice(messages).id, self._text(source), SHORT))

    def roll_back(self, source: random.Random, chat: Chat) -> None:
        self._of(chat).rollback(chat.id, source.choice([1, 1, 2]))

    def fork(self, source: random.Random, chat: Chat) -> None:
        if messages := self._of(chat).messages(chat.id):
            self.chats.append(Chat(chat.owner, self._of(chat).fork(source.choice(messages).id).id))

    def read_ahead(self, source: random.Random, chat: Chat) -> None:
        wanted = iter(range(source.choice([1, 3, 1000])))
        self._of(chat).prefetch(chat.id, lambda: next(wanted, None) is not None)

    def drop(self, source: random.Random, chat: Chat) -> None:
        if source.random() < 0.3:
            self._of(chat).drop_all_caches()
        self._of(chat).drop_cache(chat.id)

    def put_into_the_bin_and_back(self, _source: random.Random, chat: Chat) -> None:
        self._of(chat).delete(chat.id)
        self._of(chat).undelete(chat.id)

    # Steps while nothing else happens

    def remove_for_good(self, source: random.Random, chat: Chat) -> None:
        own, others = self._fed(chat), [ids for other in self.chats if other != chat for ids in self._fed(other)]
        if source.random() < 0.5:
            runtime_of(self._service).persistence.flush()
        self._of(chat).delete(chat.id)
        self._of(chat).purge(chat.id)
        self.chats.remove(chat)
        if not self.is_damaged:  # what was set aside may not say any more what it holds
            assert [num_seen(self._data_dir, ids, *others) for ids in own] == [0] * len(own)

    def restart(self, source: random.Random, _chat: Chat | None = None) -> None:
        self.close()
        self._open(source)

    def damage(self, source: random.Random, _chat: Chat) -> None:
        if files := sorted((self._data_dir / "segments").glob("*.safetensors")):
            self.is_damaged = True
            source.choice([flip, remove])(files, source)
        if source.random() < 0.5:
            self.restart(source)

    def together(self, source: random.Random, _chat: Chat) -> None:
        sources = [random.Random(source.random()) for _ in range(source.choice([2, 3, 4]))]

        def some(own: random.Random) -> None:
            for _ in range(own.choice([1, 2, 3])):
                self.step(own, ANY_TIME)

        with ThreadPoolExecutor(len(sources)) as pool:
            for done in [pool.submit(some, own) for own in sources]:
                done.result(TIMEOUT_S)

    # What holds in the end

    def check(self) -> None:
        """Each reply is what the model says without a cache; the folder is in order; each chat goes on."""
        leads = [
            lead for chat in self.chats for reply, ids in self._replies(chat) for lead in self._leads(chat, reply, ids)
        ]
        assert leads
        assert max(leads) < LEAST_LEAD
        swept = runtime_of(self._service).segments.sweep()
        assert (swept.num_temporary, swept.num_orphans, swept.num_unreachable) == (0, 0, 0)
        for chat in self.chats:
            self._finish(self._of(chat).send(chat.id, "And now?", SHORT))

    def _leads(self, chat: Chat, reply: Message, ids: tuple[int, ...]) -> list[float]:
        """By how much the best logit is above that of each token that the reply's last turn has surely sampled."""
        stats = self._of(chat).turn_stats([reply.id]).get(reply.id)
        if stats is None or stats.cache_kind != "dynamic" or stats.context_start:
            return []
        sampled = ids[stats.num_prompt_tokens :][: max(0, stats.num_completion_tokens - NUM_UNSURE)]
        if not sampled:
            return []
        with torch.inference_mode():
            logits = self._loaded.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        after = logits[stats.num_prompt_tokens - 1 :][: len(sampled)]
        return (after.max(dim=-1).values - after.gather(1, torch.tensor([sampled]).T)[:, 0]).tolist()

    def _finish(self, turn: Turn) -> None:
        stats = turn.result(TIMEOUT_S).stats
        assert stats.finish_reason is not FinishReason.ERROR, stats.fallbacks
        assert stats.num_prompt_tokens == stats.num_cached_tokens + stats.num_computed_tokens

    def _replies(self, chat: Chat) -> list[tuple[Message, tuple[int, ...]]]:
        """Every reply of the chat, with all that the model was fed and said by its end."""
        service = self._of(chat)
        session, store = service.get_session(chat.id), runtime_of(service).store
        replies = [each for each in every_message(service, chat.id).values() if each.role is Role.ASSISTANT]
        branches = (store.branch(chat.owner, chat.id, reply.id) for reply in replies)
        return [
            (reply, service._starter.fed_ids(session, branch)) for reply, branch in zip(replies, branches, strict=True)
        ]

    def _fed(self, chat: Chat) -> list[tuple[int, ...]]:
        return [ids for _, ids in self._replies(chat)]

    def _text(self, source: random.Random) -> str:
        own = [f"q{source.randrange(10**6)}" for _ in range(source.choice([0, 2, 10, 25]))]
        return " ".join([source.choice(BEGINNINGS), *own])

    def _of(self, chat: Chat) -> ChatService:
        return self._service.for_owner(chat.owner)

    def _open(self, source: random.Random | None = None) -> None:
        source = source or self.source
        options = {"memory_budget_bytes": source.choice(MEMORY_BYTES), "disk_quota_bytes": source.choice(QUOTA_BYTES)}
        self._opened = ExitStack()
        self._service = self._opened.enter_context(open_service(self._loaded, self._data_dir, **options))


Step = Callable[[RoughUse, random.Random, Chat], None]
ANY_TIME: Sequence[Step] = (
    *[RoughUse.send] * 5,
    *[RoughUse.stop] * 2,
    RoughUse.regenerate,
    RoughUse.continue_reply,
    RoughUse.edit,
    RoughUse.roll_back,
    RoughUse.fork,
    *[RoughUse.read_ahead] * 2,
    RoughUse.drop,
    RoughUse.put_into_the_bin_and_back,
)
ALONE: Sequence[Step] = (
    *[RoughUse.together] * 5,
    *[RoughUse.restart] * 2,
    *[RoughUse.damage] * 2,
    RoughUse.remove_for_good,
)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "name"), list(enumerate([*MODELS, *MODELS])))
def test_whatever_is_done_no_reply_is_wrong_nothing_hangs_and_nothing_is_left_over(
    seed: int, name: str, tiny_llama: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = with_model(tiny_llama, tiny_model(name, len(tiny_llama.tokenizer)))
    use = RoughUse(loaded, tmp_path, seed)
    with closing(use):
        use.run()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    told = [
        record for record in told if record.name not in ("chatcache.relief", "transformers.integrations.hub_kernels")
    ]
    if use.is_damaged:
        told = [record for record in told if "restored up to token" not in record.message]
    assert told == []
