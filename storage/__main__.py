"""`python -m storage verify|sweep|stats`: look after the caches on disk, while chatcache is not running.

Exit status: 0, 1 where something is damaged, 2 where the data folder cannot be used.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from storage.data_dir import default_data_dir
from storage.database import Database
from storage.errors import DataDirError
from storage.segment_check import sweep_files, verify_files
from storage.segment_files import SegmentFolder
from storage.segment_index import read_heads, read_nodes
from storage.segment_models import NamespaceRow
from storage.segment_report import holdings

EXIT_DAMAGED, EXIT_UNUSABLE = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and print what it found. Returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if not arguments.data_dir.is_dir():
            raise DataDirError(f"There is no data folder {arguments.data_dir}. Name the right one with --data-dir.")
        with Database.open(arguments.data_dir) as database:
            folder = SegmentFolder(arguments.data_dir)
            facts, status = {"verify": _verify, "sweep": _sweep, "stats": _stats}[arguments.command](database, folder)
    except DataDirError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_UNUSABLE
    print(json.dumps(facts, indent=1) if arguments.json else _in_words(facts))  # noqa: T201
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m storage", description="Look after the caches on disk.")
    parser.add_argument(
        "command",
        choices=("verify", "sweep", "stats"),
        help="verify: read and check every file; sweep: remove what belongs to nothing; stats: what takes how much",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=default_data_dir(),
        help="the data folder (default: %(default)s)",
    )
    return parser


def _verify(database: Database, folder: SegmentFolder) -> tuple[dict[str, Any], int]:
    report = verify_files(database, folder)
    return dataclasses.asdict(report), EXIT_DAMAGED if report.damage else 0


def _sweep(database: Database, folder: SegmentFolder) -> tuple[dict[str, Any], int]:
    report = sweep_files(database, folder)
    return dataclasses.asdict(report), EXIT_DAMAGED if report.num_damaged else 0


def _stats(database: Database, folder: SegmentFolder) -> tuple[dict[str, Any], int]:
    with database.read() as db:
        nodes = read_nodes(db)
        heads = [(head.session_id, head.segment_id) for head in read_heads(db)]
        num_namespaces = len(db.scalars(select(NamespaceRow.id)).all())
    session_bytes, held, shared_bytes = holdings(nodes, heads)
    return {
        "num_segments": len(nodes),
        "num_namespaces": num_namespaces,
        "num_bytes": sum(node.num_bytes for node in nodes.values()),
        "folder_bytes": sum(folder.sizes().values()),
        "set_aside_bytes": sum(folder.set_aside_sizes().values()),
        "unreachable_bytes": sum(node.num_bytes for node in nodes.values() if node.id not in held),
        "shared_bytes": shared_bytes,
        "session_bytes": session_bytes,
    }, 0


def _in_words(facts: dict[str, Any]) -> str:
    lines = []
    for name, value in facts.items():
        label = name.removeprefix("num_").replace("_", " ")
        if isinstance(value, int):
            lines.append(f"{label}: {value:,}")
        else:
            entries = value.items() if isinstance(value, dict) else enumerate(value, 1)
            lines.append(f"{label}: {len(value)}")
            lines += [f"  {key}: {entry['reason'] if isinstance(entry, dict) else entry}" for key, entry in entries]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
