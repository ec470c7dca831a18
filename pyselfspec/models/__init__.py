"""The model that ships with the package; DEMO.md beside it is its card."""

from pathlib import Path

DEMO = Path(__file__).parent / "demo.gguf"
