"""pyselfspec info: the facts that a report of a bug needs."""

from __future__ import annotations

import platform

from command_line import run

from pyselfspec import __version__
from pyselfspec.util import build
from pyselfspec.util.processor_name import processor_name


def test_the_facts_are_those_of_the_build_and_of_the_machine() -> None:
    facts = run("info", "--json").json
    assert facts["version"] == __version__
    assert facts["build"] == build.BUILD_ID
    assert facts["compiler"] == build.COMPILER
    assert facts["python"] == platform.python_version()
    assert facts["processor"] == processor_name()
    assert 1 <= facts["n_usable_cores"] <= facts["n_cores"]
    assert facts["free_bytes"] is None or facts["free_bytes"] <= facts["memory_bytes"]


def test_the_text_has_each_fact() -> None:
    facts, outcome = run("info", "--json").json, run("info")
    assert (outcome.status, outcome.stderr) == (0, "")
    for name in ("version", "build", "llama_cpp", "compiler", "python", "system", "processor"):
        assert facts[name] in outcome.stdout, name
    assert facts["features"] in outcome.stdout


def test_a_model_leads_to_the_command_that_describes_it() -> None:
    outcome = run("info", "model.gguf")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.endswith("to describe a model: pyselfspec models info model.gguf\n")
