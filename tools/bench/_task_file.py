"""Files of tasks: JSON lines with ``id``, ``task`` (its kind) and ``turns``, what the user says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click


@dataclass(frozen=True, slots=True)
class Task:
    kind: str
    turns: tuple[str, ...]


def read_tasks(path: Path, kinds: Sequence[str], n_each: int | None) -> list[Task]:
    """The tasks of these kinds (none named: of all), the first n_each of every kind.

    Raises click.BadParameter for lines that are no tasks, and where nothing is left.
    """
    by_kind: dict[str, list[Task]] = {}
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
            task = Task(str(data["task"]), tuple(map(str, data["turns"])))
        except (ValueError, TypeError, KeyError) as error:
            raise click.BadParameter(f"{path}, line {i} is no task: {error!r}") from None
        by_kind.setdefault(task.kind, []).append(task)
    if unknown := set(kinds) - by_kind.keys():
        raise click.BadParameter(
            f"{path} has no {sorted(unknown)[0]!r}; it has: {', '.join(by_kind)}"
        )
    found = [task for kind in kinds or by_kind for task in by_kind[kind][:n_each] if task.turns]
    if not found:
        raise click.BadParameter(f"{path} has no tasks")
    return found
