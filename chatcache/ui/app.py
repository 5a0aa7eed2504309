"""The page as an application: `build_app` makes it, `launch` serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr
from fastapi.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatcache.ui import texts
from chatcache.ui.events import bind
from chatcache.ui.layout import ASSETS, lay_out, script

if TYPE_CHECKING:
    from chatcache.chat import ChatService

MAX_UPLOAD_BYTES = 64 * 2**20

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


def build_app(service: ChatService) -> gr.Blocks:
    """The page over this service. The same for every tab; what differs lives in the service and in the address."""
    app: gr.Blocks
    with gr.Blocks(title=texts.APP_NAME, analytics_enabled=False, fill_height=True, delete_cache=(3600, 3600)) as app:
        bind(service, lay_out())
    return app


def launch(service: ChatService, *, host: str, port: int, block: bool = True) -> gr.Blocks:
    """Serve the page until the process is told to end, or, with `block=False`, in the background.

    Raises OSError when the port is taken. The service stays the caller's to close.
    """
    app = build_app(service)
    # As `css` Gradio would put its own class before every selector, `body` and `.dark` included.
    style_sheet = (ASSETS / "chat.css").read_text(encoding="utf-8")
    app.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=not block,
        quiet=True,
        share=False,
        ssr_mode=False,
        pwa=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        max_file_size=MAX_UPLOAD_BYTES,
        favicon_path=ASSETS / "icon.svg",
        theme=make_theme(),
        head=f"<style>{style_sheet}</style>",
        js=script("page"),
        app_kwargs={"middleware": [Middleware(SecurityHeaders)]},
    )
    return app


def make_theme() -> gr.themes.Base:
    """Gradio's plain theme with the system's own fonts, so that no font is fetched."""
    system = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Helvetica", "Arial", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace"]
    return gr.themes.Base(primary_hue="teal", neutral_hue="stone", font=system, font_mono=mono)


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
