"""Fail each call into the file system of a save once, on each rank, and see that nothing is lost.

`python integration-tests/storage_faults.py` is the whole proof: every error of `ERRORS`, once or from a call on, at
every call, on either of two ranks, for every way to save (`--ranks`, `--errors` and `--modes` choose some). The tests
take a sample. After each fault every rank must have raised an error that names it, or all must have saved; the earlier
checkpoint is whole; and the next save works, after which no temporary folder is left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path

from forking import Runs

SCRIPT = Path(__file__).with_name("failing_storage.py")
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "ESTALE", "EMFILE")
MODES = ("numbered", "replace", "background")
HOW = ("once", "onward")


def run(runs, *, num_processes, **options):
    """Return the number of cases and what was wrong, for one mode, error and way of failing."""
    with tempfile.TemporaryDirectory() as folder:
        runs.start(num_processes=num_processes, project=folder, **options)
        codes = runs.codes()
        assert codes == [0] * num_processes, f"{options}: {codes}"
        outcome = json.loads((Path(folder) / "outcome").read_text())
    return outcome["cases"], outcome["problems"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--errors", nargs="+", default=ERRORS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--sample", type=int, default=0, help="calls per rank; 0 fails each of them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    all_problems = []
    with Runs(SCRIPT) as runs:
        for mode, error, how in itertools.product(options.modes, options.errors, HOW):
            num_cases, problems = run(
                runs,
                num_processes=options.ranks,
                mode=mode,
                error=error,
                how=how,
                seed=options.seed,
                sample=options.sample,
            )
            print(f"{mode}, {error} {how}: {num_cases} cases, {len(problems)} problems", flush=True)
            all_problems += problems
    raise SystemExit("\n".join(all_problems) or 0)


if __name__ == "__main__":
    main()
