"""Models that make embeddings or score pairs of texts, and write no text."""
