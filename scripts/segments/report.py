"""Prints the results of `measure.py` as a table; docs/engines.md sums it up.

python scripts/segments/report.py docs/results/segments.json
"""

import json
import sys
from pathlib import Path


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    result = json.loads(Path(sys.argv[1]).read_text())
    print("| traffic | prompts, tokens | exact prefix | by hand | finders | reused | of by hand |")
    print("|---|---|---|---|---|---|---|")
    for row in result["traffic"]:
        ways = dict(row["ways"])
        hand = ways.pop("hand")
        n = hand["tokens"]
        shown = f"{row['traffic']}: {row['about']}"
        size = f"{hand['prompts']}, {n / hand['prompts']:,.0f}"
        shares = f"{hand['prefix'] / n:.0%} | {hand['reused'] / n:.1%}"
        for name, way in ways.items():
            print(
                f"| {shown} | {size} | {shares} | {name} | {way['reused'] / n:.1%}"
                f" | {way['of hand-made']:.1%} |"
            )
            shown, size, shares = "", "", " | "


if __name__ == "__main__":
    main()
