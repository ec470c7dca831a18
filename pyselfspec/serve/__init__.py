"""A server with the APIs of OpenAI and Anthropic: one model, several completions at once.

engine/ owns the context, in a thread of its own; app.py routes requests, in asyncio's thread.
engine/jobs.py has the data that travels between them. endpoints/ has a file for each protocol:
chat_requests/ is what those of chats share, and protocol/ what all share. store/ keeps snapshots
beyond the context. embeddings/ is for models that write no text, and router/ serves several models.
"""
