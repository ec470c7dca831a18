"""The server: an OpenAI-compatible API and a page."""
