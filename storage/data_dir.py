"""The data directory: where it lies, its lock, and files that are for its owner alone."""

from __future__ import annotations

import os
from pathlib import Path

import filelock
import platformdirs

from storage.errors import DataDirError, DataDirLockedError

LOCK_NAME = "lock"


def default_data_dir() -> Path:
    """The user's data folder, as the operating system names it."""
    return Path(platformdirs.user_data_dir("chatcache", appauthor=False))


def ensure_private_dir(path: Path) -> None:
    """Make sure that `path` is a folder. One made here is for its owner alone; an existing one keeps its mode."""
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def ensure_private_file(path: Path) -> None:
    """Make sure that `path` exists and that only its owner may read it. SQLite's -wal and -shm copy its mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def lock_data_dir(data_dir: Path) -> filelock.BaseFileLock:
    """Create `data_dir` if need be and lock it; the lock ends with the process at the latest.

    Raises DataDirLockedError where another process has it, DataDirError where it cannot be used.
    """
    lock = filelock.FileLock(data_dir / LOCK_NAME, timeout=0, mode=0o600, thread_local=False)
    try:
        ensure_private_dir(data_dir)
        lock.acquire()
    except filelock.Timeout as error:
        raise DataDirLockedError(
            f"Another chatcache has {data_dir} open. Close it, or choose another folder with --data-dir."
        ) from error
    except OSError as error:
        raise unusable(data_dir, error) from error
    return lock


def unusable(data_dir: Path, error: OSError) -> DataDirError:
    """Why the data directory cannot be used, with the remedy."""
    reason = error.strerror or str(error)
    return DataDirError(
        f"The data folder {data_dir} cannot be used: {reason}. "
        "Make it a folder that you may write to, or choose another one with --data-dir."
    )
