"""Requests of all chat protocols: prompts with tools and images, and readers of their answers."""
