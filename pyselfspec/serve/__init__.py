"""An OpenAI-compatible server: one model, several texts at once.

engine.py owns the context, in a thread of its own; app.py handles HTTP requests, in asyncio's
thread. jobs.py has the data that travels between them.
"""
