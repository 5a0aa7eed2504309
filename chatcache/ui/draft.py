"""What the message box holds while turns are rolled back: the message that was rolled back last, then what the person
has typed. Pure functions on texts."""

from __future__ import annotations


def with_message(message: str, typed: str) -> str:
    """The message before whatever was being typed."""
    return f"{message}\n\n{typed}" if typed.strip() else message


def without_message(message: str, box: str) -> str | None:
    """What was typed after the message; None where the box does not begin with it, for then all is the person's own."""
    if not f"{box}\n\n".startswith(f"{message}\n\n"):
        return None
    return box.removeprefix(message).removeprefix("\n\n")
