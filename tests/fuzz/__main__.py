"""`python -m tests.fuzz WHAT --minutes N --seed S`; `--case N` plays one case again."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz.run import TARGETS, fuzz
from tests.fuzz.world import Finding


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("what", choices=[*TARGETS, "all"])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", default=None, help="the same one gives the same cases")
    parser.add_argument("--case", type=int, default=None, help="only this one")
    parser.add_argument("--patience", type=float, default=1, help="seconds that /healthz may take")
    given = parser.parse_args()
    seed = given.seed or str(random.randrange(10**9))
    failed = False
    for what in TARGETS if given.what == "all" else [given.what]:
        with tempfile.TemporaryDirectory(prefix="coterie-fuzz-") as folder:
            try:
                only = None if given.case is None else [given.case]
                result = fuzz(
                    what,
                    Path(folder) / "home",
                    seed,
                    seconds=given.minutes * 60,
                    only=only,
                    patience=given.patience,
                )
                print(f"{what}: seed {seed}, {result}", flush=True)
            except Finding as finding:
                failed = True
                print(f"{what}: seed {seed}: {finding}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
