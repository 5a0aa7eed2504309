"""Row: how long `app.py` takes from its start to a page whose model is ready, against importing its libraries alone."""

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
STOP_TIMEOUT_S = 60


def measure_startup(bench: Workbench) -> Iterator[Line]:
    """Each time a process of its own; the first start, which converts and measures the model, is the warm-up."""
    figures = bench.alternate({"imports": _imports_s, "app": lambda: _app_s(bench.config)})
    ratio = Ratio("the imports", figures["app"] / figures["imports"], at_most=1.3)
    yield Line("start to a page that answers", "s", figures["app"], {"the imports": figures["imports"]}, (ratio,))


def _imports_s() -> float:
    began_s = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise BenchError(f"The libraries cannot be imported: status {process.wait()}.")
        return time.perf_counter() - began_s


def _app_s(config: ServiceConfig) -> float:
    """Until the page is served to a browser. Its address is printed once the model is ready."""
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
                if found := re.search(r"Ready on (http://\S+)", line):
                    with urlopen(found[1]) as page:
                        page.read()
                    return time.perf_counter() - began_s
            raise BenchError(f"The app did not start: {''.join(said).strip()}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=STOP_TIMEOUT_S)
