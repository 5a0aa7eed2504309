"""`python -m storage verify|sweep|stats`: look after the caches on disk.

What only reads, `verify` and `stats`, does so while chatcache is running, too. Exit status: 0, 1 where something is
damaged, 2 where the data folder cannot be used.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from storage.byte_sizes import format_size
from storage.data_dir import default_data_dir
from storage.database import Database
from storage.errors import DataDirError, DataDirLockedError, StoreError
from storage.models import SessionRow
from storage.segment_check import sweep_files, verify_files
from storage.segment_files import SegmentFolder
from storage.segment_heads import read_heads
from storage.segment_index import read_nodes
from storage.segment_models import NamespaceRow
from storage.segment_report import holdings

EXIT_DAMAGED, EXIT_UNUSABLE = 1, 2
RUNNING = "chatcache is running on this folder: this is what was there a moment ago."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and print what it found. Returns the exit status."""
    arguments = _parser().parse_args(argv)
    command, in_words = {
        "verify": (_verify, _in_lines),
        "sweep": (_sweep, _in_lines),
        "stats": (_stats, _in_table),
    }[arguments.command]
    try:
        with _open(arguments.data_dir, may_be_running=command is not _sweep) as database:
            facts, status = command(database, SegmentFolder(arguments.data_dir))
    except StoreError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_UNUSABLE
    try:
        print(json.dumps(facts, indent=1) if arguments.json else in_words(facts), flush=True)  # noqa: T201
    except BrokenPipeError:  # `… | head` has read enough; Python would complain once more when it closes the stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _open(data_dir: Path, *, may_be_running: bool) -> Database:
    if not data_dir.is_dir():
        raise DataDirError(f"There is no data folder {data_dir}. Name the right one with --data-dir.")
    try:
        return Database.open(data_dir)
    except DataDirLockedError:
        if not may_be_running:
            raise
    print(RUNNING, file=sys.stderr)  # noqa: T201
    return Database.open_to_read(data_dir)


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
        titles = {row.id: row.title for row in db.execute(select(SessionRow.id, SessionRow.title))}
    session_bytes, held, shared_bytes = holdings(nodes, heads)
    by_size = sorted(session_bytes.items(), key=lambda item: (-item[1], item[0]))
    return {
        "num_segments": len(nodes),
        "num_namespaces": num_namespaces,
        "num_bytes": sum(node.num_bytes for node in nodes.values()),
        "folder_bytes": sum(folder.sizes().values()),
        "set_aside_bytes": sum(folder.set_aside_sizes().values()),
        "unreachable_bytes": sum(node.num_bytes for node in nodes.values() if node.id not in held),
        "shared_bytes": shared_bytes,
        "sessions": [{"id": key, "title": titles.get(key, ""), "num_bytes": size} for key, size in by_size],
    }, 0


def _in_lines(facts: dict[str, Any]) -> str:
    lines = []
    for name, value in facts.items():
        label = name.removeprefix("num_").replace("_", " ")
        if isinstance(value, int):
            lines.append(f"{label}: {value:,}")
        else:
            lines.append(f"{label}: {len(value):,}")
            lines += [f"  {entry['reason'] if isinstance(entry, dict) else entry}" for entry in value]
    return "\n".join(lines)


def _in_table(facts: dict[str, Any]) -> str:
    rows = [
        (facts["num_bytes"], f"saved caches, in {facts['num_segments']:,} pieces"),
        (facts["shared_bytes"], "of these held by several chats, counted once here and in each chat below"),
        (facts["unreachable_bytes"], "of these held by no chat"),
        (facts["set_aside_bytes"], "damaged, set aside"),
        (facts["folder_bytes"] - facts["num_bytes"], "being written, or left over"),
    ]
    chats = [(chat["num_bytes"], f"{chat['title'] or 'without a title'} ({chat['id']})") for chat in facts["sessions"]]
    lines = [f"{format_size(num_bytes):>11}  {what}" for num_bytes, what in [*rows, *chats]]
    lines.insert(len(rows), f"\nBy chat, {len(chats):,} in all, the largest first:")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
