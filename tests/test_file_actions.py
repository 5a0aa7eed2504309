"""The names of exported files."""

from __future__ import annotations

import pytest

from chatcache.ui.file_actions import file_name


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("", "chat.json"),
        ("../../etc/passwd", "etc-passwd.json"),
        ('What? A *name*: "x" / y\\z', "What-A-name-x-y-z.json"),
        ("Größe 你好", "Größe-你好.json"),
        ("x" * 200, "x" * 60 + ".json"),
    ],
)
def test_an_exported_file_has_a_name_that_every_system_takes(title: str, name: str) -> None:
    assert file_name(title, "json") == name
