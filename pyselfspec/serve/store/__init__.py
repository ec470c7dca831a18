"""Keeps snapshots of sequences beyond the context, those of slots, and earlier responses."""
