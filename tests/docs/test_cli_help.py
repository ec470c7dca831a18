"""Help texts: every command has one, and asking for it loads neither a model nor the library."""

import re

import click
import pytest
from command_line import commands, run

from pyselfspec.cli._help import ManyOptions, Rare
from pyselfspec.runtime.sampling import SamplingParams

COMMANDS = dict(commands())
MAX_LINES = 60  # of a help text
GROUPS = [(), ("models",), ("layers",), ("layers", "profile")]


def help_of(path: tuple[str, ...], option: str = "--help") -> str:
    outcome = run(*path, option)
    assert (outcome.status, outcome.stderr) == (0, "")
    return " ".join(outcome.stdout.split())


def test_help_is_short_and_loads_no_library(run_python):
    """All in one process, which stops at the first that loads it."""
    paths = [*GROUPS, *COMMANDS]
    code = (
        "import sys; from pyselfspec.cli import main\n"
        f"for path in {paths!r}:\n"
        "    try: main([*path, '--help'])\n"
        "    except SystemExit as end: assert not end.code, path\n"
        "    assert 'llama_cpp' not in sys.modules, f'the help of {path} loads the library'"
    )
    run = run_python(code, COLUMNS="80")
    assert run.returncode == 0, run.stderr
    texts = re.split("^Usage: ", run.stdout, flags=re.MULTILINE)[1:]
    lengths = {path: len(text.splitlines()) for path, text in zip(paths, texts, strict=True)}
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}


@pytest.mark.parametrize("columns", [1, 5, 19])
def test_help_fits_a_very_narrow_terminal(run_python, columns):
    code = "from pyselfspec.cli import main; main(['generate', '--help'])"
    run = run_python(code, COLUMNS=str(columns))
    assert run.returncode == 0 and "Usage:" in run.stdout, run.stderr


def test_the_list_of_commands_loads_none_of_a_group(run_python):
    code = (
        "import sys; from pyselfspec.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('pyselfspec.cli.models.')])"
    )
    assert run_python(code).stdout.endswith("\n[]\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pull smollm2-135m", "models pull"),
        ("models inf", "models info"),
        ("models scan", "layers scan"),
        ("models pul", "models pull"),
        ("scan-layer", "scan-layers"),
        ("genrate", "generate"),
        ("run", "chat"),
        ("show", "models info"),
        ("help", "--help"),
        ("version", "--version"),
    ],
)
def test_an_unknown_command_leads_to_the_one_that_is_meant(typed, meant):
    outcome = run(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.splitlines()[-1].endswith(f". Did you mean {meant!r}?")


def test_an_unknown_command_that_resembles_none_gets_no_suggestion():
    outcome = run("xyzzy")
    assert outcome.status == 2
    assert outcome.stderr.splitlines()[-1] == "Error: No such command 'xyzzy'."


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_lists_every_parameter(path):
    """The longer text also lists the rare options."""
    command = COMMANDS[path]
    are_rare = [isinstance(param, Rare) for param in command.params]
    assert isinstance(command, ManyOptions) == any(are_rare)
    shown = help_of(path, "--help-all" if any(are_rare) else "--help")
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert all(re.search(rf"{o}\b", shown) for o in param.opts), param.opts
            assert param.help, param.name
        elif isinstance(param, click.Argument):
            assert param.make_metavar(click.Context(command)).strip("[]") in shown
            assert getattr(param, "help", None), param.name


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("models relayer", {"OUT"}),
        ("models widen", {"OUT"}),
        ("models convert", {"OUT"}),
        ("bench", {"--report FILE"}),
        ("scan-layers", {"--plot FILE"}),
        ("layers search", {"--plot FILE", "--csv FILE"}),
        ("layers profile export", {"--out FILE"}),
    ],
)
def test_help_says_what_is_replaced(command, options):
    """No command asks before it writes a file that the user named."""
    text = help_of(tuple(command.split()))
    for option in options:
        after = text.rpartition(f" {option} ")[2]
        assert "replaced" in after[:200], option


def test_every_command_has_the_same_default_temperature():
    options = [param for command in COMMANDS.values() for param in command.params]
    found = [each.default for each in options if "--temp" in each.opts]
    assert len(found) == 6 and set(found) == {SamplingParams().temperature}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_a_screen_or_is_in_groups(path):
    text = run(*path, "--help").stdout
    _, _, ungrouped = text.partition("\nOther options:")
    assert len(text.splitlines()) <= 50 or 0 < len(ungrouped.splitlines()) <= 12


@pytest.mark.parametrize("path", [*GROUPS, ("layers", "profile")], ids=" ".join)
def test_summaries_in_lists_of_commands_are_whole(path):
    assert "..." not in run(*path, "--help").stdout.partition("\nCommands:")[2]
