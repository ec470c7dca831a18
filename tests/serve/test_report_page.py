"""The report of a benchmark in a browser: readable on a phone, without a broken rule of access."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from bench_results import RESULTS

from pyselfspec.bench.report import html

PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_on_a_phone(scheme: Any, browser: Any, tmp_path: Path) -> None:
    (file := tmp_path / "report.html").write_text(html(RESULTS), encoding="utf-8")
    page = browser.new_page(viewport=PHONE, color_scheme=scheme)
    try:
        page.goto(file.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    finally:
        page.close()
