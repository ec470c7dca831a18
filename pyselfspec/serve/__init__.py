"""A server with the APIs of OpenAI and Anthropic: one model, several texts at once.

engine.py owns the context, in a thread of its own; app.py routes requests, in asyncio's thread.
jobs.py has the data that travels between them. endpoints/ translates protocols, one file for each;
chats.py is what those of chats share.
"""
