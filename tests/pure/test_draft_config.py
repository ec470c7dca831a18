"""How to draft, as one value: what goes together, and variants of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.drafters import layer_skip, ngram

MASK = LayerMask.early_exit(4, 2)


def test_equal_values_are_equal_configs_however_they_are_written() -> None:
    one = layer_skip.Options(share=False)
    assert DraftConfig(["ngram"], options=one) == DraftConfig(("ngram",), options=(one,))
    assert len({DraftConfig(), DraftConfig(options=None), DraftConfig.create("auto")}) == 1


def test_other_fields_change_a_config_that_is_given() -> None:
    config = DraftConfig("layer-skip", profile=False)
    assert DraftConfig.create(config) is config
    assert DraftConfig.create(config, mask=MASK) == DraftConfig(
        "layer-skip", mask=MASK, profile=False
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"draft": None, "mask": MASK}, "takes no mask and no options"),
        ({"draft": None, "options": ngram.Options()}, "takes no mask and no options"),
        ({"draft": None, "verify": "residual"}, "nothing to verify"),
        ({"draft": object(), "mask": MASK}, "takes no mask and no options"),
        ({"draft": []}, "names at least one"),
        ({"verify": "exact"}, "verify is one of"),
        ({"controller": "nonsense"}, "there is no controller 'nonsense'"),
        ({"options": "k=3"}, "frozen dataclass"),
        (
            {"mask": MASK, "options": layer_skip.Options(LayerMask.early_exit(4, 1))},
            "a mask of their own",
        ),
    ],
)
def test_fields_that_do_not_go_together(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DraftConfig(**fields)


def test_other_drafters_keep_the_mask_and_leave_options() -> None:
    options = layer_skip.Options(share=False)
    config = DraftConfig("layer-skip", options=options, mask=MASK, controller="fixed")
    assert config.with_draft("layer-skip") is config
    assert config.with_draft("auto") == DraftConfig(mask=MASK, controller="fixed")
    assert config.with_draft(None) == DraftConfig(None, controller="fixed")


def test_another_mask_replaces_that_of_the_options() -> None:
    config = DraftConfig("layer-skip", options=layer_skip.Options(MASK, share=False))
    other = LayerMask.early_exit(4, 1)
    assert config.with_mask(other) == DraftConfig(
        "layer-skip", options=layer_skip.Options(share=False), mask=other
    )


def test_without_session_memory_nothing_is_copied_from_earlier_texts() -> None:
    forgetful = ngram.Options(session=False)
    assert DraftConfig().without_session_memory().options == (forgetful,)
    assert DraftConfig("layer-skip").without_session_memory() == DraftConfig("layer-skip")
    assert DraftConfig.plain().without_session_memory() == DraftConfig.plain()
    given = ngram.Options(chance_min=0.5, file=Path("texts.json"))
    config = DraftConfig("ngram+layer-skip", options=given).without_session_memory()
    assert config.options == (ngram.Options(chance_min=0.5, session=False),)
