"""What of SWE-smith runs in its own environment: its generator, and its verdict on two logs. JSON on stdout.

python swesmith_peer.py generate PROFILE TREE COUNT SEED    its `bug_gen.procedural.generate.main` on a copy of TREE
python swesmith_peer.py judge PROFILE FOLDER                its `get_valid_report` of FOLDER/<n>.bug against FOLDER/clean
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path


def generate(profile: str, tree: str, count: int, seed: int) -> list[dict[str, str]]:
    from swesmith.bug_gen.procedural import generate as generator

    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        shutil.copytree(tree, profile, symlinks=True)  # where its `clone` looks first
        with contextlib.redirect_stdout(sys.stderr):
            generator.main(profile, max_bugs=-1, seed=seed, interleave=True, max_candidates=count)
        found = sorted(Path("logs/bug_gen").rglob("bug__*.diff"))
        os.chdir("/")
        return [
            {"name": f.name.removeprefix("bug__").removesuffix(".diff"), "patch": (place / f).read_text()}
            for f in found
        ]


def judge(profile: str, folder: str) -> dict[str, dict[str, list[str]]]:
    from swesmith.constants import TEST_OUTPUT_END, TEST_OUTPUT_START
    from swesmith.harness.grading import get_valid_report

    def log(file: Path) -> str:
        """As its evaluation script prints it under `set -x`."""
        out = file.with_suffix(".log")
        out.write_text(f"+ : '{TEST_OUTPUT_START}'\n{file.read_text(errors='replace')}\n+ : '{TEST_OUTPUT_END}'\n")
        return str(out)

    place = Path(folder)
    clean = log(place / "clean")
    return {f.stem: get_valid_report(log(f), clean, {"repo": profile}) for f in sorted(place.glob("*.bug"))}


if __name__ == "__main__":
    what, profile, *rest = sys.argv[1:]
    made = generate(profile, rest[0], int(rest[1]), int(rest[2])) if what == "generate" else judge(profile, rest[0])
    json.dump(made, sys.stdout)
