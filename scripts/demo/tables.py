#!/usr/bin/env python3
"""Compares the tables of a page with the output of `splicectl demo`, or rewrites them.

usage: tables.py [--write] PAGE OUTPUT

A table of the page is a code block whose first line, apart from numbers, is in the output too. A
table may omit rows of the output. Words must be equal. Counts and sizes must agree within a tenth,
errors within a factor of two. Times depend on the machine and its load, and are not compared. The
exit status is 1 if the tables differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

NUMBER = re.compile(r"(?<![A-Za-z])\d+(?:\.\d+)?(?:e[+-]?\d+)?")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
TIMES = re.compile(r"\bms\b|TTFT")
ERRORS = re.compile(r"error")
SCENARIO = 60
"""Number of output lines from a table's heading on in which its rows are searched."""


def words(line: str) -> str:
    """Returns a line with "#" for each number and for each dash that stands for a missing number,
    and with single spaces."""
    return " ".join(NUMBER.sub("#", line).replace(" - ", " # ").split())


def numbers(line: str) -> list[float]:
    return [float(n) for n in NUMBER.findall(line)]


def close(line: str, have: float, want: float) -> bool:
    """Returns whether a printed number `have` agrees with the page's number `want`."""
    if TIMES.search(line):
        return True
    if ERRORS.search(line):
        return have == want or min(have, want) * 2.1 >= max(have, want) > 0 < min(have, want)
    return abs(have - want) <= max(0.1 * abs(want), 1e-9)


def printed_rows(table: list[str], output: list[str]) -> list[str | None]:
    """Returns the printed line of each row; None for a missing one. The output may have more
    rows. If several sections have the same heading, the section most like the table is used."""
    best: list[str | None] = []
    for at, line in enumerate(output):
        if words(line) != words(table[0]):
            continue
        rest = output[at : at + SCENARIO]
        rows = [next((r for r in rest if words(r) == words(row)), None) for row in table]
        if not best or len(differences(table, rows)) < len(differences(table, best)):
            best = rows
    return best


def differences(table: list[str], printed: list[str | None]) -> list[str]:
    found = []
    for ours, theirs in zip(table, printed, strict=True):
        if theirs is None:
            found.append(f"  page: {ours}\n  demo: no such line")
        elif not all(
            close(ours, have, want)
            for have, want in zip(numbers(theirs), numbers(ours), strict=True)
        ):
            found.append(f"  page: {ours}\n  demo: {theirs}")
    return found


def main() -> int:
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    page, output = Path(arguments[0]), Path(arguments[1]).read_text().splitlines()
    text, wrong, tables = page.read_text(), [], 0
    for language, block in BLOCK.findall(text):
        table = block.splitlines()
        printed = [] if language or not words(table[0]) else printed_rows(table, output)
        if not printed:
            continue
        tables += 1
        if "--write" in sys.argv and None not in printed:
            text = text.replace(block, "".join(f"{row}\n" for row in printed))
        else:
            wrong += differences(table, printed)
    if tables < 3:
        wrong.append(f"  only {tables} tables of {page} are printed by the demo")
    if wrong:
        print(
            f"{page} is not what the demo prints; make demo-tables rewrites it:", *wrong, sep="\n"
        )
        return 1
    page.write_text(text)
    print(f"{tables} tables of {page} agree with the demo")
    return 0


if __name__ == "__main__":
    sys.exit(main())
