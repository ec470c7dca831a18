"""Optuna's samplers over sets of units.

A trial has a priority for each unit and the number of units to skip, those of highest priority. So
every suggestion has an allowed size; a switch per unit would not ensure that.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...util.extras import install_command
from ...util.paths import without_password
from ..rounds import Round
from . import Rounds, Setting, from_rounds

ENDLESS = True

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

STUDY = "pyselfspec"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of optuna. storage: URL of Optuna's study, resumed if it exists; None: in memory."""

    storage: str | None = None


@from_rounds
def make(setting: Setting, options: Options) -> Rounds:
    study = _study(setting.seed, options.storage)
    if not study.trials:
        for mask in setting.start:
            _enqueue(study, setting, mask)
    while True:
        trial = study.ask()
        (scored,) = yield Round.of_one(_mask(trial, setting))
        trial.set_user_attr("mask", scored.mask.to_dict())
        study.tell(trial, scored.value)


def _mask(trial: Trial, setting: Setting) -> LayerMask:
    n_units = len(setting.space.units)
    n = trial.suggest_int("n_skip", 1, setting.n_max)
    priority = [trial.suggest_float(f"unit {i}", 0.0, 1.0) for i in range(n_units)]
    order = sorted(range(n_units), key=lambda i: -priority[i])
    return setting.space.mask(order[:n])


def _enqueue(study: Study, setting: Setting, mask: LayerMask) -> None:
    inside = setting.space.inside(mask)
    if not 1 <= len(inside) <= setting.n_max:
        return
    n_units = len(setting.space.units)
    priority = {f"unit {i}": 0.75 if i in inside else 0.25 for i in range(n_units)}
    study.enqueue_trial({"n_skip": len(inside), **priority})


def _study(seed: int, storage: str | None) -> Study:
    try:
        import optuna
    except ImportError:
        raise ArgumentError(
            f"the strategy optuna needs Optuna: {install_command('search')}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
    try:
        return optuna.create_study(
            study_name=STUDY,
            storage=storage,
            sampler=sampler,
            direction="maximize",
            load_if_exists=True,
        )
    except Exception as error:  # depends on the database
        if storage is None:
            raise
        reason = str(error).partition("\n")[0]
        raise ArgumentError(
            without_password(
                f"Optuna cannot keep a study in {storage} ({reason}); "
                "give a URL like sqlite:///study.db"
            )
        ) from None
