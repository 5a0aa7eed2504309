import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tiny_models import save

import app
from chatcache.config import EMBEDDED_MODEL
from chatcache.loader import LoadedModel
from storage.data_dir import default_data_dir

ROOT = Path(app.__file__).parent
START_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tiny_llama: LoadedModel) -> Path:
    return save(tiny_llama, tmp_path_factory.mktemp("models") / "tiny")


SLOW_TO_LOAD = """
import sys, time
import app
import chatcache.loader
chatcache.loader._read_weights = lambda _outline: time.sleep(600)
status = app.main(sys.argv[1:])
sys.stdout.flush()
app.os._exit(status)
"""
"""The app, but that the weights are never there."""


@contextmanager
def running(*arguments: object, program: Sequence[str] = ("app.py",)) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port, once its page is there, and its address."""
    command = [sys.executable, *program, "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            printed = []
            for line in process.stdout:
                printed.append(line)
                if found := re.search(r"Ready on (http://\S+)", line):
                    yield process, found[1]
                    break
            else:
                pytest.fail(f"The server did not start: {''.join(printed)}")
        finally:
            process.kill()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What is printed when the arguments are fine and the start is not."""
    assert app.main([str(argument) for argument in arguments]) == 1
    sentence = capsys.readouterr().err
    assert sentence.startswith("chatcache: ")
    assert sentence.count("\n") == 1
    return sentence


def taken_port() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


# ---------------------------------------------------------------- arguments


def test_without_arguments_everything_has_its_default() -> None:
    config, address = app.parse_arguments([])
    assert config.model == EMBEDDED_MODEL
    assert config.data_dir == default_data_dir()
    assert (config.device, config.dtype, config.weights, config.cache) == ("auto",) * 4
    assert config.max_context_tokens is None
    assert config.max_concurrent_turns == 2
    assert address == app.Address("127.0.0.1", 7860)
    assert address.url == "http://127.0.0.1:7860"


def test_every_argument_reaches_the_configuration() -> None:
    text = (
        "--model m --data-dir ~/d --host ::1 --port 81 --device cpu --dtype float32 --weights full --cache none"
        " --context 99 --max-turns 3"
    )
    config, address = app.parse_arguments(text.split())
    assert config.model == "m"
    assert config.data_dir == Path.home() / "d"
    assert (config.device, config.dtype, config.weights, config.cache) == ("cpu", "float32", "full", "none")
    assert config.max_context_tokens == 99
    assert config.max_concurrent_turns == 3
    assert address == app.Address("::1", 81)
    assert address.url == "http://[::1]:81"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_addresses_of_this_machine_alone_need_no_flag(host: str) -> None:
    assert app.parse_arguments(["--host", host])[1].host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_an_address_others_can_reach_needs_insecure(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        app.parse_arguments(["--host", host])
    assert caught.value.code == 2
    assert "--insecure" in capsys.readouterr().err
    assert app.parse_arguments(["--host", host, "--insecure"])[1].host == host


@pytest.mark.parametrize(
    "arguments",
    [
        "--port x",
        "--port -1",
        "--port 65536",
        "--context 0",
        "--context ten",
        "--max-turns 0",
        "--nosuch",
        "extra",
        "--data-dir ~nouser/x",
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        app.parse_arguments(arguments.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_the_version_is_the_projects(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        app.parse_arguments(["--version"])
    assert caught.value.code == 0
    assert re.fullmatch(r"chatcache \d+\.\d+\.\d+\n", capsys.readouterr().out)


# ---------------------------------------------------------------- starts that cannot succeed


def test_a_port_in_use_is_told_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with taken_port() as listener:
        port = listener.getsockname()[1]
        sentence = refusal(capsys, "--port", port, "--data-dir", tmp_path / "data")
    assert f"port {port}" in sentence
    assert "--port" in sentence
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--model ./nosuch", "There is no folder or file ./nosuch"),
        ("--model ~nouser/x", "Check --model"),
        ("--model " + "x" * 300, "Check --model"),
        ("--model /" + "x" * 5000, "Check --model"),
        ("--device tpu", "tpu"),
        ("--weights int3", "int3"),
        ("--dtype int7", "int7"),
        ("--cache nosuch", "nosuch"),
        ("--context 999999", "at most 2048"),
        ("--context 15", "at least 16"),
    ],
)
def test_what_the_model_does_not_offer_is_one_sentence(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, model_folder: Path
) -> None:
    model = [] if "--model" in arguments else ["--model", model_folder]
    assert says in refusal(capsys, "--port", 0, "--data-dir", tmp_path, *model, *arguments.split())


def test_a_data_directory_that_cannot_be_used_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_folder: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("x")
    for data_dir in (blocker, blocker / "below"):
        assert str(blocker) in refusal(capsys, "--port", 0, "--data-dir", data_dir, "--model", model_folder)


# ---------------------------------------------------------------- a server that runs


@pytest.mark.slow
def test_who_comes_before_the_page_is_there_gets_words_and_then_the_page(tmp_path: Path, model_folder: Path) -> None:
    with taken_port() as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "app.py", f"--port={port}", f"--data-dir={tmp_path}", f"--model={model_folder}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert "loading" in process.stdout.readline()
            url = f"http://127.0.0.1:{port}"
            with pytest.raises(HTTPError) as early:
                urlopen(url, timeout=START_TIMEOUT_S)
            assert early.value.code == 503
            assert "chatcache is starting" in early.value.read().decode()
            assert "Ready" in process.stdout.readline()
            with urlopen(url, timeout=START_TIMEOUT_S) as page:
                assert page.status == 200
        finally:
            process.kill()


@pytest.mark.slow
def test_the_page_is_served_and_a_second_server_on_the_same_data_is_refused(tmp_path: Path, model_folder: Path) -> None:
    arguments = ("--data-dir", tmp_path / "data", "--model", model_folder)
    with running(*arguments) as (_, url):
        with urlopen(url, timeout=30) as page:
            assert page.status == 200
        second = subprocess.run(
            [sys.executable, "app.py", "--port", "0", *map(str, arguments)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    assert second.returncode == 1
    assert second.stderr.startswith("chatcache: ")
    assert second.stderr.count("\n") == 1
    assert str(tmp_path / "data") in second.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly_even_when_it_comes_twice(
    number: signal.Signals, tmp_path: Path, model_folder: Path
) -> None:
    arguments = ("--data-dir", tmp_path / "data", "--model", model_folder)
    with running(*arguments) as (process, _):
        process.send_signal(number)
        time.sleep(0.05)
        if process.poll() is None:
            process.send_signal(number)
        said = process.stdout.read()
        assert process.wait(timeout=30) == 0
        assert "Traceback" not in said
    with running(*arguments):
        pass  # the data directory was let go


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_is_loading_ends_the_server_without_waiting_for_it(
    number: signal.Signals, tmp_path: Path, model_folder: Path
) -> None:
    arguments = ("--data-dir", tmp_path / "data", "--model", model_folder)
    with running(*arguments, program=("-c", SLOW_TO_LOAD)) as (process, url):
        with urlopen(url, timeout=30) as page:
            assert page.status == 200
        process.send_signal(number)
        said = process.stdout.read()
        assert process.wait(timeout=START_TIMEOUT_S) == 0
        assert "Traceback" not in said
        assert "The model is loaded" not in said
    with running(*arguments) as (process, _):
        assert "The model is loaded: tiny." in process.stdout.readline()  # the data directory was let go


@pytest.mark.slow
def test_weights_that_turn_out_to_be_damaged_end_the_server_with_one_sentence(
    tmp_path: Path, model_folder: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(model_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with running("--data-dir", tmp_path / "data", "--model", folder) as (process, _):
        said = process.stdout.read()
        assert process.wait(timeout=START_TIMEOUT_S) == 1
    assert said.startswith("chatcache: The weights of damaged cannot be loaded: ")
    assert said.count("\n") == 1


def test_a_terminal_that_cannot_show_a_line_or_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        encoding = "ascii"

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    app._say("loading \udcff …")
    assert sys.stdout.getvalue() == "loading \\udcff \\u2026\n"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no terminals that hang up")
@pytest.mark.skipif(
    hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
    reason="what is started here is to outlive its terminal (nohup)",
)
def test_closing_the_terminal_ends_the_server_in_order(tmp_path: Path, model_folder: Path) -> None:
    with running("--data-dir", tmp_path / "data", "--model", model_folder) as (process, _):
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) in (0, 120)  # 120: Python's own last flush found nobody to read
