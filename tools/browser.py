"""The browser that the browser tests drive: an installed Chromium or Chrome, else one that is installed now.

`python -m tools.browser` makes sure that there is one and prints its path; without one it fails with the remedy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_APPS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
REMEDY = (
    "The browser tests need Chromium or Chrome, and none could be installed. "
    "Install one (on Debian: sudo apt install chromium) and run `make test` again."
)
INSTALL_TIMEOUT_S = 600
_PRINT_PLAYWRIGHT_PATH = (
    "from playwright.sync_api import sync_playwright\nwith sync_playwright() as p: print(p.chromium.executable_path)"
)


def find_browser() -> Path | None:
    """The path of a browser that starts, None if there is none. Installs nothing."""
    installed = [shutil.which(name) for name in NAMES] + [path for path in MAC_APPS if Path(path).is_file()]
    for path in installed:
        if path is not None and _starts(path):
            return Path(path)
    own = _run([sys.executable, "-c", _PRINT_PLAYWRIGHT_PATH], timeout_s=60)
    if own is not None and _starts(own.strip()):
        return Path(own.strip())
    return None


def ensure_browser() -> Path:
    """The path of a browser that starts, installed if need be. Exits with the remedy if none can be had."""
    found = find_browser()
    if found is not None:
        return found
    _say("No Chromium or Chrome is installed. Trying Playwright's own …")
    _run([sys.executable, "-m", "playwright", "install", "chromium"], timeout_s=INSTALL_TIMEOUT_S)
    if (found := find_browser()) is not None:
        return found
    if shutil.which("apt-get") is not None and (become_root := _root_prefix()) is not None:
        _say("Trying the distribution's package chromium …")
        apt_get = [*become_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
        _run([*apt_get, "update"], timeout_s=INSTALL_TIMEOUT_S)
        _run([*apt_get, "install", "-y", "--no-install-recommends", "chromium"], timeout_s=INSTALL_TIMEOUT_S)
        if (found := find_browser()) is not None:
            return found
    raise SystemExit(REMEDY)


def _starts(path: str) -> bool:
    # Ubuntu's chromium-browser without its snap, and a browser whose libraries are missing, exist and do not start.
    return bool(path) and Path(path).is_file() and _run([path, "--version"], timeout_s=60) is not None


def _root_prefix() -> list[str] | None:
    if os.geteuid() == 0:
        return []
    can_sudo = shutil.which("sudo") is not None and _run(["sudo", "-n", "true"], timeout_s=10) is not None
    return ["sudo", "-n"] if can_sudo else None


def _run(command: list[str], timeout_s: float) -> str | None:
    """What `command` prints, None if it fails; then the first line of its complaint is shown."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"{command[0]}: {error}")
        return None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        _say(f"{' '.join(command[:4])}: exit status {done.returncode}{': ' + lines[0] if lines else ''}")
        return None
    return done.stdout


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.stdout.write(f"Browser for the tests: {ensure_browser()}\n")
