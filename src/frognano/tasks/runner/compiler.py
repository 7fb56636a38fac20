"""Compiles files of a clean repository without running any: `python -s compiler.py OUT` with names on stdin.

OUT gets a JSON line, name of the bytecode to its size, and then the bytes. Each line of stdin is a JSON list: path, and
whether pytest would rewrite its assertions.
"""

import ast
import json
import marshal
import os
import sys

RUNNER = os.path.dirname(os.path.abspath(__file__))
REPO = "/repo/"


def main() -> None:
    sys.path.insert(0, RUNNER)
    from loaders import PLAIN, REWRITTEN, key  # type: ignore[import-not-found]

    sys.path.remove(RUNNER)
    from _pytest.assertion import rewrite

    made: dict[str, bytes] = {}
    for line in sys.stdin:
        name, is_test = json.loads(line)
        path = REPO + name
        try:
            with open(path, "rb") as file:
                source = file.read()
            made[key(PLAIN, path, source)] = marshal.dumps(compile(source, path, "exec", dont_inherit=True))
            if is_test:
                tree = ast.parse(source, filename=path)
                rewrite.rewrite_asserts(tree, source, path, None)
                code = compile(tree, path, "exec", dont_inherit=True)
                made[key(REWRITTEN, path, source)] = marshal.dumps(code)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # of another Python, say: whoever imports it will see
    with open(sys.argv[1], "xb") as out:
        out.write(json.dumps({name: len(data) for name, data in made.items()}).encode() + b"\n")
        out.write(b"".join(made.values()))


if __name__ == "__main__":
    main()
