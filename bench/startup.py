"""Row: how long `app.py` takes from its start to a page, and to a model that can answer on it, against importing its
libraries alone."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

from bench.line import Line, Ratio
from bench.subjects import BenchError
from bench.workbench import Workbench
from chatcache.config import ServiceConfig

APP = Path(__file__).parent.parent / "app.py"
IMPORTS = "import torch, transformers, gradio; print('imported', flush=True)"
PAGE_IS_THERE = r"Ready on (http://\S+)"
MODEL_IS_THERE = "The model is loaded"
STOP_TIMEOUT_S = 60


def measure_startup(bench: Workbench) -> Iterator[Line]:
    """Each time a process of its own; the first start, which converts and measures the model, is the warm-up.

    On the page chats can be read and messages sent as soon as it is there. They are answered once the model is loaded,
    before which no token can come: so that is a figure of its own.
    """
    figures = bench.alternate(
        {
            "imports": _imports_s,
            "page": lambda: _app_s(bench.config, PAGE_IS_THERE),
            "model": lambda: _app_s(bench.config, MODEL_IS_THERE),
        }
    )
    imports = {"the imports": figures["imports"]}
    page = Ratio("the imports", figures["page"] / figures["imports"], at_most=1.3)
    model = Ratio("the imports", figures["model"] / figures["imports"])
    yield Line("start to a page that can be read and written in", "s", figures["page"], imports, (page,))
    yield Line("start to a model that can answer", "s", figures["model"], imports, (model,))


def _imports_s() -> float:
    began_s = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise BenchError(f"The libraries cannot be imported: status {process.wait()}.")
        return time.perf_counter() - began_s


def _app_s(config: ServiceConfig, wanted: str) -> float:
    """Until a line that is `wanted` is printed; where it has an address, until the page there is read."""
    options = {"model": config.model, "device": config.device, "weights": config.weights, "data-dir": config.data_dir}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, str(APP), "--port=0", *arguments]
    began_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = []
        try:
            for line in process.stdout:
                said.append(line)
                if found := re.search(wanted, line):
                    for address in found.groups():
                        with urlopen(address) as page:
                            page.read()
                    return time.perf_counter() - began_s
            raise BenchError(f"The app did not start: {''.join(said).strip()}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=STOP_TIMEOUT_S)
