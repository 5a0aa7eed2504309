"""The page as an application, in every language, and the server that gives it to browsers."""

from __future__ import annotations

import ipaddress
import socket
import threading
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse, RedirectResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatcache.errors import ChatCacheError
from chatcache.ui.events import bind
from chatcache.ui.language import preferred_language
from chatcache.ui.layout import ASSETS, lay_out, script
from chatcache.ui.texts import ENGLISH, Texts
from chatcache.ui.turkish import TURKISH

if TYPE_CHECKING:
    from chatcache.chat import ChatService

MAX_UPLOAD_BYTES = 64 * 2**20
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")

QUEUE_POLL_S = 0.02
"""How often Gradio's queue, one for each language, looks for clicks. Its own thousand times a second take time from the
model thread, and from a battery when nobody is there."""

STYLE_SHEETS = ("chat", "side", "content", "writing")

PAGE_SCRIPTS = ("page", "scroll", "words", "found", "steps", "editor", "focus", "composer", "import", "panels", "keys")
"""What runs once for the whole page; the first one makes what the others use."""

LANGUAGES = {texts.LANGUAGE: texts for texts in (ENGLISH, TURKISH)}
"""The first one is at `/`, also for a browser that asks for none of them; the others are below their own names."""

# Gradio needs inline and evaluated scripts of its own; nothing on the page may talk to another host.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "frame-src 'none'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


def build_page(service: ChatService, texts: Texts) -> gr.Blocks:
    """The page over this service. The same for every tab; what differs lives in the service and in the address."""
    page: gr.Blocks
    with gr.Blocks(title=texts.APP_NAME, analytics_enabled=False, fill_height=True, delete_cache=(3600, 3600)) as page:
        bind(service, lay_out(texts, service.model_info), texts)
    page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = QUEUE_POLL_S
    return page


def build_app(service: ChatService, hosts: Sequence[str]) -> FastAPI:
    """One page per language; `/` leads a browser to the one it asks for. Answers under the names `hosts` only."""
    app = FastAPI(openapi_url=None)
    # By this a page that was open before a restart knows that it talks to another server.
    run = {"x-chatcache-run": uuid.uuid4().hex}
    app.add_api_route("/favicon.ico", lambda: FileResponse(ASSETS / "icon.svg", headers=run), include_in_schema=False)
    # As `css` Gradio would put its own class before every selector, `body` and `.dark` included.
    style_sheet = "".join((ASSETS / f"{name}.css").read_text(encoding="utf-8") for name in STYLE_SHEETS)
    scripts = "".join(map(script, PAGE_SCRIPTS))
    for language, texts in reversed(LANGUAGES.items()):  # `/` last, for it takes every path that is left
        gr.mount_gradio_app(
            app,
            build_page(service, texts),
            path=_path_of(language),
            ssr_mode=False,
            pwa=False,
            run_history=False,
            enable_monitoring=False,
            footer_links=[],
            max_file_size=MAX_UPLOAD_BYTES,
            theme=make_theme(),
            head=f"<style>{style_sheet}</style><script>{scripts}</script>",
        )
    app.add_middleware(InTheBrowsersLanguage)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return app


class PageServer:
    """Serves the page in a thread of its own until `close`. The service stays the caller's to close."""

    def __init__(self, service: ChatService, listener: socket.socket) -> None:
        """`listener` listens already; it is closed with the server. Raises ChatCacheError where it does not start."""
        self._socket = listener
        config = uvicorn.Config(build_app(service, self._hosts()), log_level="warning")
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="chatcache-page", daemon=True
        )
        self._thread.start()
        if not self._server.is_up.wait(START_TIMEOUT_S):
            raise ChatCacheError(
                f"The page cannot be served: its server did not start within {START_TIMEOUT_S:.0f} s. Close other "
                "programs, and start chatcache again."
            )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """End all connections and let the port go."""
        self._server.should_exit = self._server.force_exit = True  # a tab that follows a chat would never end by itself
        self._thread.join(STOP_TIMEOUT_S)
        self._socket.close()

    def _hosts(self) -> tuple[str, ...]:
        """The names it answers to. Where only this machine is to be let in, a site whose name leads here is not."""
        host = self._socket.getsockname()[0]
        if not ipaddress.ip_address(host).is_loopback:
            return ("*",)
        return (f"[{host}]" if ":" in host else host, *LOOPBACK_NAMES)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def make_theme() -> gr.themes.Base:
    """Gradio's plain theme with the system's own fonts, so that no font is fetched."""
    system = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Helvetica", "Arial", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace"]
    theme = gr.themes.Base(primary_hue="teal", neutral_hue="stone", font=system, font_mono=mono)
    # The grounds of chat.css: Gradio's page has these before any style sheet is there.
    return theme.set(body_background_fill="#faf9f7", body_background_fill_dark="#171615")


class InTheBrowsersLanguage:
    """Leads a request for `/` to the page in the language that its `Accept-Language` prefers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/":
            headers = dict(scope["headers"])
            accepted = headers.get(b"accept-language", b"").decode("latin-1")
            path = _path_of(preferred_language(accepted, tuple(LANGUAGES)))
            if path != "/":
                query = scope["query_string"].decode("latin-1")
                await RedirectResponse(f"{path}/?{query}" if query else f"{path}/")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _path_of(language: str) -> str:
    return "/" if language == ENGLISH.LANGUAGE else f"/{language}"


class SecurityHeaders:
    """Adds to every response what a browser must not do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[Any] = message.setdefault("headers", [])
                headers.append((b"content-security-policy", CONTENT_SECURITY_POLICY.encode()))
                headers.append((b"x-content-type-options", b"nosniff"))
                headers.append((b"referrer-policy", b"no-referrer"))
            await send(message)

        await self._app(scope, receive, send_with_headers)
