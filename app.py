"""chatcache from the command line: arguments → ChatService → page, until the process is told to stop.

The only reader of arguments and environment. Exit status: 0 stopped on request, 1 could not start, 2 wrong arguments.
"""

from __future__ import annotations

from chatcache.stop_signals import StopRequest, end_at_once, on_stop_signals

if __name__ == "__main__":  # before the imports that take long
    on_stop_signals(end_at_once)

import argparse
import contextlib
import dataclasses
import gc
import ipaddress
import os
import signal
import socket
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chatcache.config import DEFAULT_DISK_QUOTA_BYTES, EMBEDDED_MODEL, ServiceConfig
from chatcache.errors import ChatCacheError, InvalidInputError
from chatcache.memory.byte_sizes import parse_size
from chatcache.openmp import let_threads_wait_awake_briefly
from chatcache.ui.waiting_page import WaitingPage
from storage.data_dir import default_data_dir

if TYPE_CHECKING:
    from chatcache.chat import ChatService

DEFAULT_PORT = 7860
LAST_WORDS_S = 1.5
"""Where the model cannot be loaded, pages that are open say so in this time, before they lose the connection."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the page is served. Port 0 stands for any free one."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def main(argv: Sequence[str]) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit status; wrong arguments leave through SystemExit(2)."""
    config, address = parse_arguments(argv)
    try:
        if address is None:
            _say(_table_of_caches(config))
        else:
            with _listening(address) as listener:
                _serve(config, dataclasses.replace(address, port=listener.getsockname()[1]), listener)
    except ChatCacheError as error:
        sys.stderr.write(f"chatcache: {error}\n")
        return 1
    return 0


def parse_arguments(argv: Sequence[str]) -> tuple[ServiceConfig, Address | None]:
    """What the command line asks for; no address if only the cache kinds are to be listed.

    Exits with status 2 and a sentence if it cannot be meant.
    """
    parser = argparse.ArgumentParser(
        prog="app.py", description="A browser chat for local language models that never throws away its KV cache."
    )
    add = parser.add_argument
    add(
        "--model", default=EMBEDDED_MODEL, help="local folder, .gguf file or hub id (default: the embedded %(default)s)"
    )
    add(
        "--data-dir", type=_folder, default=default_data_dir(), help="where chats and models lie (default: %(default)s)"
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=_port, default=DEFAULT_PORT, help="port to listen on, 0 for any free one (default: %(default)s)")
    add("--insecure", action="store_true", help="allow a --host that other machines can reach; there is no password")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: %(default)s)")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16 (default: %(default)s)")
    add("--weights", default="auto", help="auto, full, int8 or int4 (default: %(default)s)")
    add(
        "--cache", default="auto", metavar="KIND", help="auto or a kind that --list-caches names (default: %(default)s)"
    )
    add("--list-caches", action="store_true", help="print which cache kinds fit this model and device, and exit")
    add("--context", type=_at_least_one, metavar="TOKENS", help="context length (default: what the model supports)")
    add("--memory", type=_size, metavar="SIZE", help="for all live caches, such as 4GB (default: most of what is free)")
    add("--disk-quota", type=_size, default=DEFAULT_DISK_QUOTA_BYTES, metavar="SIZE", help="for saved caches (10GiB)")
    add("--max-turns", type=_at_least_one, default=2, help="replies written at once (default: %(default)s)")
    add("--version", action="version", version=f"chatcache {version()}")
    given = parser.parse_args(argv)
    if not given.insecure and not _is_loopback(given.host):
        parser.error(
            f"--host {given.host} lets other machines read every chat without a password. "
            "Add --insecure if that is what you want."
        )
    config = ServiceConfig(
        model=given.model,
        data_dir=given.data_dir,
        device=given.device,
        dtype=given.dtype,
        weights=given.weights,
        cache=given.cache,
        max_context_tokens=given.context,
        memory_budget_bytes=given.memory,
        disk_quota_bytes=given.disk_quota,
        max_concurrent_turns=given.max_turns,
    )
    return config, None if given.list_caches else Address(given.host, given.port)


def version() -> str:
    """The version in pyproject.toml."""
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text("utf-8"))
    return str(project["project"]["version"])


def _table_of_caches(config: ServiceConfig) -> str:
    """One line for each cache kind: that it fits the model on the device, or why not. Weights are not read."""
    from chatcache.cache.kinds import facts_of, table_of_kinds
    from chatcache.memory.model_config import load_model_config
    from chatcache.model_options import resolve_device

    device = resolve_device(config.device)
    table = table_of_kinds(facts_of(load_model_config(config.model), device.type))
    width = max(len(row.kind) for row in table)
    lines = (f"{row.kind:<{width}}  {'yes' if row.refusal is None else f'no: {row.refusal}'}" for row in table)
    return "\n".join((f"Cache kinds for {config.model} on {device} (auto takes dynamic):", *lines))


def _serve(config: ServiceConfig, address: Address, listener: socket.socket) -> None:
    _say(f"chatcache {version()}: loading {config.model} …")
    # The page asks nobody but this machine. Gradio reads this when it is imported, which is also why imports are here.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    let_threads_wait_awake_briefly(os.environ)
    # After each event Gradio would make statistics of all events before it; nobody looks at them.
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(sys.maxsize)
    # What is made until the model is there stays. Looking through it for garbage again and again, which there is hardly
    # any of, would be a fifth of the start; and it need not be looked through later either.
    gc.disable()
    with WaitingPage(listener) as waiting:

        def say(line: str) -> None:
            _say(line)
            waiting.say(line)

        from chatcache.chat import ChatService
        from chatcache.ui.app import PageServer

        service = ChatService.open(config, progress=say, loads=False)
        try:
            PageServer(service, listener)
            stop = StopRequest()
            on_stop_signals(lambda *_: stop.make())
            waiting.close()
            _say(f"Ready on {address.url} (Ctrl+C stops it)")
            _answer_until(stop, service)
        finally:
            gc.enable()
            service.close()


def _answer_until(stop: StopRequest, service: ChatService) -> None:
    """Load the model, and wait until the process is told to stop. Raises what loading it raised."""

    def on_loaded(failure: BaseException | None) -> None:
        if failure is not None:
            stop.make(failure)
            return
        gc.freeze()
        gc.enable()
        _say(f"The model is loaded: {service.model_info.name}.")

    service.load(on_loaded)  # not before the page is there: they would hold up each other
    failure = stop.wait()
    if failure is not None:
        time.sleep(LAST_WORDS_S)
        raise failure
    on_stop_signals(signal.SIG_IGN)  # a second signal would end the process before all is stored
    _say("Stopping; replies that are being written are kept as far as they are …")


def _listening(address: Address) -> socket.socket:
    """A socket that listens there, before anything takes long. Raises ChatCacheError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise ChatCacheError(
            f"Cannot listen on {address.host}, port {address.port}: {error.strerror or error}. "
            "Perhaps chatcache is running already; else choose another port with --port."
        ) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port; give a number from 0 to 65535")
    return int(text)


def _folder(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text} names the home of a user who is not there") from error


def _at_least_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _say(line: str) -> None:
    """Print a line, as far as the terminal can show it and as long as there is one."""
    encoding = sys.stdout.encoding or "utf-8"
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{line}\n".encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # All is stored and closed by now. Taking the interpreter down with its libraries would take seconds more.
    os._exit(status)
