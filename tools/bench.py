"""Measurements of the runtime: ``python tools/bench.py NAME ...``, see the folder ``bench``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tools.bench._main import main

main()
