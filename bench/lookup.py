"""Row: what prompt lookup gains where a reply repeats what was said, and what it costs where it does not."""

from __future__ import annotations

from collections.abc import Iterator

from bench.line import Line, Ratio
from bench.subjects import BenchError, greedy, settle
from bench.workbench import Workbench, new_owner
from chatcache.chat import ChatService

NUM_TOKENS = 96
TEXTS = {
    "text that repeats": (
        "Copy this list word for word, three times: red lantern, blue harbour, green valley, white tower, black river, "
        "golden field, silver coin, copper kettle, amber bead, purple cloth, orange sail, grey stone.",
        1.4,
    ),
    "free text": ("Write a story about a lighthouse keeper who collects the names of ships.", 0.95),
}


def measure_lookup(bench: Workbench) -> Iterator[Line]:
    """Tokens per second with prompt lookup, against the same chat without it. Greedy, so both write the same text."""
    with bench.service() as service:
        for what, (text, at_least) in TEXTS.items():
            chats = {name: _Chat(service.for_owner(new_owner()), text, name == "with") for name in ("without", "with")}
            speeds = bench.alternate({name: chat.speed for name, chat in chats.items()})
            ratio = Ratio("without", speeds["with"] / speeds["without"], at_least=at_least)
            yield Line(f"prompt lookup, {what}", "tokens/s", speeds["with"], {"without": speeds["without"]}, (ratio,))


class _Chat:
    def __init__(self, service: ChatService, text: str, with_lookup: bool) -> None:
        self._service = service
        self._id = service.create_session(settings={"prompt_lookup": with_lookup}).id
        service.send(self._id, text, greedy(1)).result()

    def speed(self) -> float:
        sampling = greedy(NUM_TOKENS)
        stats = self._service.regenerate(self._id, sampling=sampling).result().stats
        settle(self._service)
        if stats.decode_tokens_per_s is None:
            raise BenchError("The model ended its reply at once; choose another text.")
        return stats.decode_tokens_per_s
