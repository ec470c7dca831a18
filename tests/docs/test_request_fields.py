"""The table of request fields in the docs is that of the code."""

from tools import field_table


def test_the_table_is_that_of_the_code() -> None:
    page = field_table.PAGE.read_text(encoding="utf-8")
    assert field_table.with_table(page) == page, "run python tools/field_table.py --write"
