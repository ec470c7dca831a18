"""Conversations with a model in one context, and the chats on disk."""
