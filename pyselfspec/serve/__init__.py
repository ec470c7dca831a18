"""A server that OpenAI's clients can talk to: one model, several texts at once.

engine.py owns the context, in one thread of its own; app.py answers requests, in asyncio's. What
travels between them is in jobs.py.
"""
