"""kill -9 in mid-reply: what was on the page is there again, and the reply can be continued."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from services import GREEDY, open_service

from chatcache.loader import LoadedModel
from chatcache.stats import FinishReason
from chatcache.turn_runner import SAVE_INTERVAL_S
from storage.records import MessageStatus

ROOT = Path(__file__).parent.parent
CHILD = """
import sys
from pathlib import Path
import torch
from chatcache.chat import ChatService
from chatcache.config import ServiceConfig
from chatcache.events import TextEvent
from chatcache.stats import Sampling

torch.set_num_threads(2)
service = ChatService.open(ServiceConfig(model=sys.argv[1], data_dir=Path(sys.argv[2]), device="cpu"))
session = service.create_session()
service.send(session.id, "Say hello.", Sampling(temperature=0.0, max_new_tokens=4)).result()
turn = service.send(session.id, "Write a long story about the sea.", Sampling(temperature=0.0, max_new_tokens=1500))
print(session.id, flush=True)
for event in turn.events():
    if isinstance(event, TextEvent):
        print(ascii(event.text), flush=True)
"""


@pytest.mark.slow
def test_a_server_killed_in_mid_reply_loses_about_a_second_at_most(
    embedded: LoadedModel, embedded_model_dir: Path, tmp_path: Path
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(embedded_model_dir), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None
    session_id = child.stdout.readline().strip()
    pieces: list[tuple[float, str]] = []
    try:
        for line in child.stdout:
            pieces.append((time.monotonic(), line))
            if len(pieces) > 5 and pieces[-1][0] - pieces[0][0] > 3 * SAVE_INTERVAL_S:
                break
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    killed_at = pieces[-1][0]
    surely_saved = "".join(ast.literal_eval(text) for at, text in pieces if at < killed_at - 2 * SAVE_INTERVAL_S)
    assert surely_saved

    with open_service(embedded, tmp_path) as service:
        messages = service.messages(session_id)
        assert [message.text for message in messages[::2]] == ["Say hello.", "Write a long story about the sea."]
        partial = messages[-1]
        assert partial.status is MessageStatus.INTERRUPTED
        assert partial.text.startswith(surely_saved)
        assert service.turn_stats([partial.id])[partial.id].finish_reason is FinishReason.INTERRUPTED
        num_taken = service.context_use(session_id).num_fed_tokens
        more = service.continue_reply(session_id, GREEDY).result(timeout_s=120)
        assert more.stats.num_prompt_tokens == num_taken
        assert more.message.id == partial.id
        assert more.message.status is MessageStatus.COMPLETE
        assert more.message.text.startswith(partial.text)
        assert len(more.message.token_ids or ()) == len(partial.token_ids or ()) + 8
