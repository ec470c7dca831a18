"""Requests of all chat protocols: prompts with tools and pictures, and readers of their answers."""
