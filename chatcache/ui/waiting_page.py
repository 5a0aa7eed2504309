"""`WaitingPage`: words for a browser that comes before the page can be served, which opens by itself soon after.

It imports nothing that takes long, so it is there before anything else is.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import socket
import threading
from asyncio import StreamReader, StreamWriter
from concurrent.futures import Future
from types import TracebackType

from chatcache.errors import ChatCacheError
from chatcache.ui.language import preferred_language
from chatcache.ui.starting_texts import StartingTexts, TurkishStarting, step_in

REQUEST_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0
_LANGUAGES = {texts.LANGUAGE: texts for texts in (StartingTexts, TurkishStarting)}

_MARKUP = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; display: grid; place-content: center; min-height: 90vh;
text-align: center; padding: 0 24px; }}</style></head>
<body><main role="status"><h1>{title}</h1><p>{detail}</p>{step}</main></body></html>
"""


class WaitingPage:
    """Answers whoever connects to a socket that listens, from a thread of its own, until `close`. The socket stays
    open, for the page."""

    def __init__(self, listener: socket.socket) -> None:
        """Raises ChatCacheError where it cannot be served."""
        self._step = ""
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="chatcache-waiting", daemon=True)
        self._thread.start()
        try:
            self._up.result(START_TIMEOUT_S)
        except OSError as error:  # that time is over is one, too
            reason = error.strerror or f"its server did not start within {START_TIMEOUT_S:.0f} s"
            raise ChatCacheError(
                f"The page cannot be served: {reason}. Close other programs, and start chatcache again."
            ) from error

    def __enter__(self) -> WaitingPage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def say(self, step: str) -> None:
        """What takes long just now. It is in English where the page's language has no words for it."""
        self._step = step

    def close(self) -> None:
        """Leave those who come from now on to the page. May be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    def _run(self, listener: socket.socket) -> None:
        try:
            with listener.dup() as own:
                asyncio.run(self._serve(own))
        except OSError as error:
            if self._up.done():
                raise
            self._up.set_exception(error)

    async def _serve(self, listener: socket.socket) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, sock=listener)
        self._up.set_result(None)
        await self._ended.wait()
        server.close()  # who is being answered still is not waited for

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Whatever is asked for: the page's own scripts take this status for a server that is not there."""
        # EOFError: it said nothing; LimitOverrunError: too much.
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError, TimeoutError),
        ):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                body = self._markup(head).encode()
                writer.write(
                    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html; charset=utf-8\r\nRetry-After: 1\r\n"
                    b"Cache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                await writer.drain()

    def _markup(self, head: str) -> str:
        request, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value for name, _, value in (line.partition(":") for line in lines)}
        language = preferred_language(headers.get("accept-language", ""), tuple(_LANGUAGES))
        named = [each for each in _LANGUAGES if f" /{each}/" in request]  # a page that was open in that language
        texts = _LANGUAGES[named[0] if named else language]
        step, own = "", step_in(texts.LANGUAGE, self._step)
        if self._step:
            step = f'<p lang="{texts.LANGUAGE if own else "en"}">{html.escape(own or self._step)}</p>'
        return _MARKUP.format(language=texts.LANGUAGE, title=texts.STARTING, detail=texts.STARTING_DETAIL, step=step)
