"""What is told of exported files and of saves. In brackets: the facts that come with it."""

from __future__ import annotations

from enum import StrEnum


class FileTold(StrEnum):
    """What is wrong with an exported chat, or could not be taken as it was."""

    NOT_AN_OBJECT = "file-not-an-object"
    """[what]"""
    NOT_A_LIST = "file-not-a-list"
    """[name]"""
    BAD_ID = "file-bad-id"
    """[name, what, value]"""
    BAD_ROLE = "file-bad-role"
    """[value]"""
    TWICE = "file-twice"
    """[message]"""
    OWN_ANCESTOR = "file-own-ancestor"
    """[message]"""
    NO_PLACE = "file-no-place"
    """[message]"""
    OTHER_END = "file-other-end"
    UNKNOWN = "file-unknown"
    """[name, what]"""
    UNUSABLE = "file-unusable"
    """[name, what]"""
    REPLY_ADDED = "file-reply-added"
    TURN_LEFT_OUT = "file-turn-left-out"
    MORE = "file-more"


class SaveTold(StrEnum):
    """Why not all of a cache was saved."""

    DISK_ALMOST_FULL = "save-disk-almost-full"
    QUOTA_TOO_SMALL = "save-quota-too-small"
    """[num_bytes, quota_bytes]"""
    QUOTA_USED_UP = "save-quota-used-up"
    """[num_bytes]"""
    NOT_WRITTEN = "save-not-written"
    """[failure]"""
    BEGINNING_GONE = "save-beginning-gone"
    CHAT_GONE = "save-chat-gone"
