"""The report of a benchmark in a browser: readable on a phone, without a broken rule of access."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from test_bench_figures import RESULTS
from test_page import browser as browser  # the fixture

from pyselfspec.bench.report import html

PHONE = {"width": 390, "height": 844}


def test_the_report_on_a_phone(browser: Any, tmp_path: Path) -> None:
    (file := tmp_path / "report.html").write_text(html(RESULTS), encoding="utf-8")
    page = browser.new_page(viewport=PHONE)
    try:
        page.goto(file.as_uri())
        for chart in page.locator("svg.wide").all():
            box = chart.bounding_box()
            scale = box["width"] / float(chart.get_attribute("viewBox").split()[2])
            assert 12 * scale >= 10  # pixels of the letters
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    finally:
        page.close()
