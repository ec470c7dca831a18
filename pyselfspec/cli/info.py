"""pyselfspec info: describe the installation and the machine, for reports of bugs."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import click
import cloup

from .. import __version__
from ..runtime.ffi import devices
from ..runtime.processor import cpu_backend, variant
from ..util import build, memory
from ..util.machine import load, usable_cores
from ..util.processor_name import processor_name
from ..util.sizes import size_text
from ._options import json_option


@cloup.command(name="info", context_settings={"allow_extra_args": True})
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Describe this installation and machine, for bug reports.

    Shows versions, build, processor, memory and GPUs. To describe a model, use pyselfspec models
    info MODEL.
    """
    if context.args:
        raise click.UsageError(
            "info takes no arguments; to describe a model: "
            f"pyselfspec models info {context.args[0]}"
        )
    facts = _facts()
    click.echo(json.dumps(facts) if as_json else _text(facts))


def _facts() -> dict[str, Any]:
    return {
        "version": __version__,
        "build": build.BUILD_ID,
        "llama_cpp": build.LLAMA_CPP_VERSION,
        "target": build.TARGET,
        "build_type": build.BUILD_TYPE,
        "compiler": build.COMPILER,
        "cmake_args": build.CMAKE_ARGS,
        "backends": list(build.BACKENDS),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor_name(),
        "n_usable_cores": usable_cores(),
        "n_cores": os.cpu_count(),
        "load": load(),
        "cpu_code": variant(cpu_backend()),
        "features": devices.system_info(),
        "memory_bytes": memory.total(),
        "free_bytes": memory.available(),
        "huge_pages": memory.has_huge_pages(),
        "gpus": list(devices.gpus()),
    }


def _text(facts: dict[str, Any]) -> str:
    total, free = facts["memory_bytes"], facts["free_bytes"]
    known = "unknown" if total is None else f"{size_text(total)}, {size_text(free or 0)} free"
    busy = "" if facts["load"] is None else f", load {facts['load']:.1f}"
    return "\n".join(
        [
            f"pyselfspec: {facts['version']}, library {facts['build']} ({facts['target']})",
            f"llama.cpp: {facts['llama_cpp']}, backends {', '.join(facts['backends'])}",
            f"build: {facts['build_type']}, {facts['compiler']}, "
            f"CMAKE_ARGS {facts['cmake_args'] or 'not set'}",
            f"system: {facts['system']}, Python {facts['python']}",
            f"processor: {facts['processor']}, {facts['n_usable_cores']} of {facts['n_cores']} "
            f"cores usable{busy}",
            f"CPU code: {facts['cpu_code']}; {facts['features']}",
            f"memory: {known}, huge pages {'on' if facts['huge_pages'] else 'off'}",
            f"GPUs: {', '.join(facts['gpus']) or 'none that this build can use'}",
        ]
    )
