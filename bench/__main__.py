"""The speed and size figures, as ratios within one run.

    python -m bench [GROUP…] [--markdown] [--peer NAME]

Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from bench.first_turn import PEERS
from bench.row import Row, markdown, missed, plain

GROUPS = ("start", "registry", "turns", "disk", "delegation", "memory", "importing", "size")
"""One module each, with `run() -> list[Row]`."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="The speed and size figures.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all if none")
    parser.add_argument("--markdown", action="store_true", help="the table for a page")
    parser.add_argument(
        "--peer", choices=PEERS, help="install this gateway below .build/ and start it beside ours"
    )
    asked = parser.parse_args(arguments)
    unknown = set(asked.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    rows: list[Row] = []
    for name in asked.groups or GROUPS:
        group = importlib.import_module(f"bench.{name}")
        rows += group.run(asked.peer) if name == "start" else group.run()
    print(markdown(rows) if asked.markdown else plain(rows))
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
