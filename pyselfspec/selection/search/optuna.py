"""Optuna's samplers over sets of units.

A trial has a number for each unit, its priority, and how many units to skip: the ones of highest
priority. So every suggestion is a set of allowed size, which a switch per unit would not be.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from . import Setting, Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial as OptunaTrial

STUDY = "pyselfspec"


class Search:
    """The study is at ``study``; with a storage in the setting it is kept there and taken up."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.study = _study(setting)
        self._asked: OptunaTrial | None = None
        if not self.study.trials:
            for mask in setting.start:
                self._enqueue(mask)

    def ask(self) -> LayerMask:
        space, n_max = self._setting.space, self._setting.n_max
        self._asked = self.study.ask()
        n = self._asked.suggest_int("n_skip", 1, n_max)
        priority = [
            self._asked.suggest_float(f"unit {i}", 0.0, 1.0) for i in range(len(space.units))
        ]
        order = sorted(range(len(priority)), key=lambda i: -priority[i])
        return space.mask(order[:n])

    def tell(self, trial: Trial) -> None:
        assert self._asked is not None
        self._asked.set_user_attr("mask", trial.mask.to_dict())
        self.study.tell(self._asked, trial.value)

    def _enqueue(self, mask: LayerMask) -> None:
        space, inside = self._setting.space, self._setting.space.inside(mask)
        if not 1 <= len(inside) <= self._setting.n_max:
            return
        priority = {f"unit {i}": 0.75 if i in inside else 0.25 for i in range(len(space.units))}
        self.study.enqueue_trial({"n_skip": len(inside), **priority})


def _study(setting: Setting) -> Study:
    try:
        import optuna
    except ImportError:
        raise ArgumentError("this search needs Optuna: pip install 'pyselfspec[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=setting.seed, multivariate=True)
    try:
        return optuna.create_study(
            study_name=STUDY,
            storage=setting.storage,
            sampler=sampler,
            direction="maximize",
            load_if_exists=True,
        )
    except Exception as error:  # of whatever database the URL names
        if setting.storage is None:
            raise
        reason = str(error).partition("\n")[0]
        raise ArgumentError(
            f"Optuna cannot keep a study in {setting.storage} ({reason}); "
            "give a URL like sqlite:///study.db"
        ) from None
