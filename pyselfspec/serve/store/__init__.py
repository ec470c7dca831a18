"""Keeps texts beyond the context: beginnings of prompts, saved slots, and earlier responses."""
