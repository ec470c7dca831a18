"""python -m pyselfspec: the command line."""

from .cli import main

main(prog_name="pyselfspec")
