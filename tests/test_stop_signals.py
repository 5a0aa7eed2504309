"""A wish to stop that comes before the page is there, and at any other moment: one sentence, and no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_gguf import write_gguf

from chatcache.loader import LoadedModel

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 120
STOPPED_EARLY = "Stopped while chatcache was starting; nothing is lost.\n"

STOPPED_AT = """
import os, runpy, sys

event, about, number = sys.argv[1], sys.argv[2], int(sys.argv[3])

def stop_at(happened, facts):
    global about
    if about and happened == event and about in str(facts[0]):
        about = None
        os.write(2, b"asked\\n")
        os.kill(os.getpid(), number)

sys.argv[1:4] = []
sys.argv[0] = "app.py"
sys.addaudithook(stop_at)
runpy.run_path("app.py", run_name="__main__")
"""
"""The app, which is asked to stop when it first does a thing: an audit event about something with that in its name."""


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory, tiny_llama: LoadedModel) -> Path:
    path = tmp_path_factory.mktemp("models") / "Tiny.gguf"
    write_gguf(path, tiny_llama.model, tiny_llama.tokenizer)
    return path


def stopped_at(event: str, about: str, number: int, *arguments: object) -> str:
    """What is printed by a process that must have been asked to stop, once, and have ended in order."""
    command = [sys.executable, "-c", STOPPED_AT, event, about, str(int(number)), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.stderr, done.returncode) == ("asked\n", 0)
    return done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["argparse", "platformdirs", pytest.param("torch._C", marks=pytest.mark.slow)])
def test_a_signal_during_the_imports_is_one_sentence(module: str, number: signal.Signals, tmp_path: Path) -> None:
    said = stopped_at("import", module, number, "--port=0", f"--data-dir={tmp_path}")
    assert said.endswith(STOPPED_EARLY)
    assert said.count("\n") <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "about"),
    [
        ("import", "numpy"),
        ("import", "transformers"),
        ("import", "gradio"),
        ("sqlite3.connect", "chats.db"),
        ("open", ".partial"),
        ("open", "chat.css"),
    ],
)
def test_a_signal_before_the_page_is_there_is_one_sentence(
    event: str, about: str, tmp_path: Path, gguf_file: Path
) -> None:
    said = stopped_at(event, about, signal.SIGINT, "--port=0", f"--data-dir={tmp_path}", f"--model={gguf_file}")
    assert said.endswith(STOPPED_EARLY)
    assert "Ready" not in said


@pytest.mark.slow
def test_a_signal_while_the_model_is_loaded_ends_in_order(tmp_path: Path, gguf_file: Path) -> None:
    said = stopped_at(
        "import", "chatcache.loader", signal.SIGINT, "--port=0", f"--data-dir={tmp_path}", f"--model={gguf_file}"
    )
    assert said.splitlines()[-2].startswith("Ready on ")
    assert said.splitlines()[-1].startswith("Stopping; ")


STOPPED_AS_IT_BEGINS_TO_WAIT = """
import os, random, signal, threading, time
from chatcache import stop_signals
from chatcache.stop_signals import StopRequest, on_stop_signals

stop_signals.NOTICE_S = 0.02
moments = random.Random(0)
for _ in range(3000):
    stop = StopRequest()
    on_stop_signals(lambda *_: stop.make())
    is_waiting, delay_s = threading.Event(), moments.random() * 2e-4

    def send():
        is_waiting.wait()
        until_s = time.perf_counter() + delay_s
        while time.perf_counter() < until_s:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    is_waiting.set()
    assert stop.wait() is None
    sender.join()
print("stopped")
"""


@pytest.mark.slow
def test_a_signal_that_comes_just_as_the_process_begins_to_wait_is_heard() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED_AS_IT_BEGINS_TO_WAIT],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=ROOT,
    )
    assert ended.stdout == "stopped\n", ended.stderr
