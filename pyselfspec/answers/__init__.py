"""Parts of an answer: reasoning, text and calls of tools, read from the text of a model while it
streams. Pure; knows neither HTTP nor a protocol."""
