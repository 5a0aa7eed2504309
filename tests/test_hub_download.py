"""Against a hub of the test's own that speaks as much of the hub's HTTP interface as a download needs."""

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
import torch
from tiny_models import save

from chatcache.checkpoint.hub_download import ensure_downloaded
from chatcache.config import ServiceConfig
from chatcache.errors import ModelLoadError
from chatcache.loader import LoadedModel, load_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves `repos`: repository id → file name → content. Ids in `gated` answer as gated ones do."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.broken_files: set[str] = set()
        self.downloaded: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlparse(self.path).path).strip("/")
        api = path.removeprefix("api/models/")
        repo = "/".join((api if api != path else path).split("/")[:2])
        if repo in self.server.gated:
            return self._send(403, b"{}", with_body, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        files = self.server.repos.get(repo)
        if files is None:
            return self._send(404, b"{}", with_body, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "none"})
        if api != path:
            listing = [{"type": "file", "path": n, "size": len(c), "oid": _oid(c)} for n, c in files.items()]
            info = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            return self._send(200, json.dumps(listing if "/tree/" in api else info).encode(), with_body, {})
        name = path.split(f"resolve/{COMMIT}/", 1)[1]
        if name in self.server.broken_files:
            return self._send(403, b"", with_body, {})
        if with_body:
            self.server.downloaded.append(name)
        content = files[name]
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT}
        return self._send(200, content, with_body, headers)

    def _send(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    point_to(server.url, monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def point_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `url` the hub, as the library's HF_ENDPOINT does when it is set before the start."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def model_files(tmp_path: Path, tiny_llama: LoadedModel) -> dict[str, bytes]:
    folder = save(tiny_llama, tmp_path / "saved")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def download(name: str, lines: list[str] | None = None) -> Path:
    return ensure_downloaded(name, lines.append if lines is not None else lambda _line: None)


def test_a_model_is_downloaded_once_and_then_used_without_the_hub(
    hub: FakeHub,
    model_files: dict[str, bytes],
    tmp_path: Path,
    tiny_llama: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.repos["someone/tiny"] = model_files
    config = ServiceConfig(model="someone/tiny", data_dir=tmp_path / "data", device="cpu")
    lines: list[str] = []
    first = load_model(config, lines.append)
    assert lines == ["Downloading someone/tiny, once …"]
    assert first.name == "someone/tiny"
    ids = torch.tensor([[1, 50, 60]])
    with torch.inference_mode():
        assert torch.equal(first.model(ids).logits, tiny_llama.model(ids).logits)
    point_to("http://127.0.0.1:1", monkeypatch)
    again = load_model(config, lines.append)
    assert again.digest == first.digest
    assert len(lines) == 1


def test_only_what_is_needed_is_downloaded(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    unneeded = {"pytorch_model.bin": b"x", "consolidated.safetensors": b"x", "onnx/model.onnx": b"x", "a.gguf": b"x"}
    hub.repos["someone/tiny"] = model_files | unneeded | {"original/params.json": b"{}"}
    folder = download("someone/tiny")
    assert set(hub.downloaded) == set(model_files)
    assert {path.name for path in folder.iterdir()} == set(model_files)


def test_older_weights_are_downloaded_where_there_are_no_others(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    model_files["pytorch_model.bin"] = model_files.pop("model.safetensors")
    hub.repos["someone/old"] = model_files | {"training_args.bin": b"x"}
    folder = download("someone/old")
    assert (folder / "pytorch_model.bin").is_file()
    assert "training_args.bin" not in hub.downloaded


def test_a_download_that_broke_off_goes_on_at_the_next_start(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    hub.repos["someone/tiny"] = model_files
    hub.broken_files.add("model.safetensors")
    with pytest.raises(ModelLoadError, match="Start again"):
        download("someone/tiny")
    hub.broken_files.clear()
    folder = download("someone/tiny")
    assert (folder / "model.safetensors").read_bytes() == model_files["model.safetensors"]


def test_an_unknown_name_says_so(hub: FakeHub) -> None:
    hub.repos["someone/else"] = {}
    with pytest.raises(ModelLoadError, match="no public model of that name"):
        download("someone/tiny")


def test_a_gated_model_names_the_remedy(hub: FakeHub) -> None:
    hub.gated.add("someone/gated")
    with pytest.raises(ModelLoadError, match="accept its terms"):
        download("someone/gated")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.Q4_0.gguf": b"x"}, "GGUF files only"),
        ({"model.onnx": b"x"}, "no weights that transformers can load"),
    ],
)
def test_a_repository_in_another_format_says_what_to_do(hub: FakeHub, files: dict[str, bytes], says: str) -> None:
    hub.repos["someone/other"] = files
    with pytest.raises(ModelLoadError, match=says):
        download("someone/other")


@pytest.mark.timeout(60)
def test_without_the_hub_an_unknown_name_says_what_was_tried(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        point_to(f"http://127.0.0.1:{unused.getsockname()[1]}", monkeypatch)
        with pytest.raises(ModelLoadError) as caught:
            download("someone/some-model")
    message = str(caught.value)
    assert "no local folder" in message
    assert "not downloaded before" in message
    assert "cannot be reached" in message
    assert "\n" not in message
    assert hub.downloaded == []


@pytest.mark.timeout(60)
def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("chatcache.checkpoint.hub_download.TIMEOUT_S", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        point_to(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        with pytest.raises(ModelLoadError, match="cannot be reached"):
            download("someone/some-model")


def test_a_name_that_can_be_nothing_is_refused(hub: FakeHub) -> None:
    with pytest.raises(ModelLoadError, match=r"no local folder, no \.gguf file and no hub id"):
        download("not a model!")
    assert hub.downloaded == []
