"""Build and try wheels: ``python tools/wheels.py build FOLDER``, see the folder ``wheels``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tools.wheels._main import main

main()
