"""`python -m bench`: measure, print one table, write the same as JSON. See `--help`.

Exit status: 0 measured, 1 a figure could not be taken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from bench.line import Line
from bench.llama_cpp import ensure_installed, llama_cpp
from bench.machine import load, machine_facts
from bench.rows import ROWS
from bench.subjects import BenchError, PlainTransformers, Subject
from bench.table import as_json, markdown
from bench.workbench import Workbench
from bench.worker import Worker
from chatcache import openmp
from chatcache.checkpoint.model_files import embedded_gguf, locate_model
from chatcache.config import EMBEDDED_MODEL, ServiceConfig
from chatcache.library_calls import quiet_transformers

BUILD_DIR = Path("build")
TEXT_FILE = Path("chatcache/weights/sample_text.txt")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for. Returns the exit status."""
    given = _parser().parse_args(argv)
    if given.threads:
        torch.set_num_threads(given.threads)
    facts = {"machine": machine_facts(), "model": given.model, "num_runs": given.runs}
    lines: list[Line] = []
    status = 0
    try:
        bench = _workbench(given)
    except BenchError as error:
        _say(str(error))
        return 1
    for name in given.rows:
        _say(f"{name} …")
        try:
            lines.extend(ROWS[name](bench))
        except BenchError as error:
            _say(f"{name}: {error}")
            status = 1
    for peer in bench.peers:
        peer.close()
    facts["load_at_end"] = round(load(), 1)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(as_json(lines, facts), indent=1), "utf-8")
    machine = ", ".join(f"{key} {value}" for key, value in machine_facts().items() if value is not None)
    sys.stdout.write(f"{machine}\nmedian of {given.runs} runs\n\n{markdown(lines)}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="chatcache measured beside other programs.")
    parser.add_argument("--rows", type=_rows, default=list(ROWS), help=f"some of: {','.join(ROWS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="short contexts, no slow parts")
    parser.add_argument("--runs", type=int, default=5, help="runs per figure (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help="also llama.cpp; the model is a GGUF file then")
    parser.add_argument("--threads", type=int, help="threads of every program (default: torch's choice)")
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="as for app.py (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="as for app.py (default: %(default)s)")
    parser.add_argument("--weights", default="auto", help="as for app.py (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=BUILD_DIR / "bench.json", help="(default: %(default)s)")
    return parser


def _rows(names: str) -> list[str]:
    wanted = names.split(",")
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no row {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    return wanted


def _workbench(given: argparse.Namespace) -> Workbench:
    data_dir = BUILD_DIR / "bench-data"
    for path in data_dir.iterdir() if data_dir.is_dir() else ():
        if path.name != "models":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    config = ServiceConfig(model=given.model, data_dir=data_dir, device=given.device, weights=given.weights)
    folder = locate_model(given.model, data_dir / "models", _say).folder
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    peers: list[Subject] = [_transformers(folder, given.device, tokenizer)]
    if given.peers:
        gguf_file = embedded_gguf() if given.model == EMBEDDED_MODEL else Path(given.model)
        peers.append(llama_cpp(ensure_installed(BUILD_DIR / "peers"), gguf_file, tokenizer))
    return Workbench(config, tuple(peers), tokenizer, TEXT_FILE.read_text("utf-8"), given.runs, given.quick)


def _transformers(folder: Path, device: str, tokenizer: PreTrainedTokenizerBase) -> Worker:
    """With the environment that it has when nobody sets anything."""
    command = (sys.executable, "-m", "bench.transformers_worker", folder, device, torch.get_num_threads())
    return Worker(PlainTransformers.name, command, tokenizer, unset=tuple(openmp.SETTINGS))


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
