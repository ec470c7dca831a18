"""The command that installs an extra works where the message appears."""

from __future__ import annotations

from importlib import metadata

import pytest

from pyselfspec.util.extras import install_command


@pytest.mark.parametrize(
    ("is_installed", "command"),
    [(True, "pip install 'pyselfspec[serve]'"), (False, "pip install '.[serve]'")],
)
def test_a_checkout_is_named_by_its_folder(
    is_installed: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def distribution(name: str) -> None:
        if not is_installed:
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    assert install_command("serve") == command
