"""The speed and size figures, as ratios within one run.

    python -m bench [GROUP…] [--markdown]

Exit code 1 if a target is missed.
"""

from __future__ import annotations

import importlib
import sys

from bench.row import Row, markdown, missed, plain

GROUPS = ("start", "registry", "turns", "delegation", "memory", "size")
"""One module each, with `run() -> list[Row]`."""


def main(arguments: list[str]) -> int:
    asked = [name for name in arguments if not name.startswith("-")] or list(GROUPS)
    unknown = set(asked) - set(GROUPS)
    if unknown:
        print(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for name in asked:
        rows += importlib.import_module(f"bench.{name}").run()
    print(markdown(rows) if "--markdown" in arguments else plain(rows))
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
