"""Generates completions: the thread that owns a context, its slots, and the jobs of requests."""
