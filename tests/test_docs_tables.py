"""Tables of the documentation that commands make have the numbers that the commands give."""

import pytest

from tests.docs_tables import MARK, PAGES, made, rounds_to, tables, written, wrong

TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}
FOUND = [table for page, text in TEXTS.items() for table in tables(page, text)]


@pytest.mark.slow
@pytest.mark.parametrize("table", FOUND, ids=lambda table: f"{table.page}-{table.span[0]}")
def test_numbers_are_those_of_the_commands(table):
    assert wrong(table, made(table.commands, TEXTS[table.page])) == []


def test_every_mark_has_its_commands_and_its_table():
    assert len(FOUND) == sum(text.count(MARK) for text in TEXTS.values()) > 0


PAGE = """
```sh
mfabric compare --nic-gbps 100,400 --schedule 1f1b
mfabric compare --nic-gbps 100,400 \\
    --schedule zb-v
```

<!-- cells: {schedule} | {time_s:.2f} s ({share:.0f}) of nic_gbps=100 |
{time_s above first:.1f} % of nic_gbps=400 -->

| `--schedule` | 100 Gbps | longer |
|---|---|---|
| `1f1b` | 1,240.00 s (3) | 0.0 % |
| zb-v | 2.35 s (4) | -25.0 % |

Text.
"""
(SMALL,) = tables("page", PAGE)


def rows_of(schedule, *rows):
    """100 and 400 Gbps."""
    names = ("time_s", "share", "nic_gbps")
    return [{"schedule": schedule} | dict(zip(names, row, strict=True)) for row in rows]


RIGHT = [
    *rows_of("1f1b", ("1240.0", "3.2", "100.0"), ("8.0", "3", "400.0")),
    *rows_of("zb-v", ("2.345000", "4", "100.0"), ("6.0", "3", "400.0")),
]


@pytest.mark.parametrize(("place", "column", "value"), [(0, "time_s", "1240.1"), (2, "share", "5"), (3, "time_s", "7")])
def test_a_number_that_is_wrong_is_found_and_written(place, column, value):
    assert wrong(SMALL, RIGHT) == []
    rows = [row | {column: value} if number == place else row for number, row in enumerate(RIGHT)]
    assert len(wrong(SMALL, rows)) == 1
    begin, end = SMALL.span
    (again,) = tables("page", PAGE[:begin] + written(SMALL, rows) + PAGE[end:])
    assert wrong(again, rows) == []
    assert len(wrong(again, RIGHT)) == 1


def test_a_row_must_be_there_once():
    for rows in (RIGHT[1:], [*RIGHT, RIGHT[0]]):
        with pytest.raises(AssertionError, match="there must be one"):
            wrong(SMALL, rows)
    (other,) = tables("page", PAGE.replace("2.35 s", "some s"))
    with pytest.raises(AssertionError, match="'some s \\(4\\)' is not like"):
        wrong(other, RIGHT)


def test_numbers_are_compared_as_they_are_printed():
    assert rounds_to(8.815, "8.81")
    assert rounds_to(1239.6, "1,240")
    assert not rounds_to(8.8142, "8.82")
