"""Chats and caches on disk: SQLAlchemy rows and files.

Knows sessions, messages, turns and owners. Does not know models, tensors or interfaces: it imports nothing
of `chatcache`, no transformers and no gradio.
"""
