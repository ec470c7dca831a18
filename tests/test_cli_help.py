"""Help texts: every command has one, and asking for it loads neither a model nor the library."""

import pytest
from command_line import run

from pyselfspec.cli import main

COMMANDS = [(), *((name,) for name in main.list_commands(None))]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_loads_no_library(command, run_python):
    code = (
        "import sys; from pyselfspec.cli import main\n"
        f"try: main([*{command!r}, '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'llama_cpp' not in sys.modules, 'help loads the library'"
    )
    run = run_python(code)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("relayer", {"OUT is"}),
        ("widen", {"OUT is"}),
        ("convert", {"OUT is"}),
        ("calibrate", {"--plot"}),
        ("bench", {"--report"}),
        ("scan-layers", {"--plot"}),
        ("search", {"--plot", "--csv"}),
        ("profile export", {"--out"}),
    ],
)
def test_help_says_what_is_replaced(command, options):
    """Nothing asks before it writes: who names a file to write means it."""
    text = " ".join(run(*command.split(), "--help").stdout.split())
    for option in options:
        after = text.rpartition(f" {option} ")[2]
        assert "replace" in after[:200], option


@pytest.mark.parametrize("name", main.list_commands(None))
def test_help_fits_a_screen_or_is_in_groups(name):
    text = run(name, "--help").stdout
    _, _, ungrouped = text.partition("\nOther options:")
    assert len(text.splitlines()) <= 50 or 0 < len(ungrouped.splitlines()) <= 12


TAKES_MODEL = [
    name
    for name in main.list_commands(None)
    if any(p.name == "model" and not p.required for p in main.get_command(None, name).params)
]
DEMO = '"demo".'
DEFAULT_MODEL = {"chat": "the chat model on this machine that was used or pulled last."}


@pytest.mark.parametrize("name", TAKES_MODEL)
def test_every_command_says_the_same_of_its_model(name):
    text = " ".join(run(name, "--help").stdout.split())
    assert (
        "MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, "
        f"else {DEFAULT_MODEL.get(name, DEMO)}"
    ) in text
