"""Training of small models with draft heads in their own files (multi-token prediction)."""
