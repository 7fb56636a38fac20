#!/usr/bin/env bash
# Writes constraints.txt anew from pyproject.toml: every package pinned with its hashes, for every Python from 3.11 on.
# torch is left out (see constraints-torch.txt), but what it needs is pinned here.
set -euo pipefail
cd "$(dirname "$0")/.."
left_out=$(mktemp)
trap 'rm -f "$left_out"' EXIT
echo torch > "$left_out"
{
  echo '# Made by scripts/lock.sh (make lock). Installed with --no-deps --require-hashes.'
  printf '%s\n' sympy networkx jinja2 fsspec filelock typing-extensions |
    "${VENV:-.venv}/bin/uv" pip compile pyproject.toml - --extra tasks --extra train --extra vllm --extra dev --excludes "$left_out" \
      --python-version 3.11 --universal --generate-hashes --no-annotate --no-header --quiet "$@"
} > constraints.txt.part
mv constraints.txt.part constraints.txt

# The trackers are extras that nobody needs: pins of their own, which agree with those above. Usable alone, in a venv of its own.
{
  echo '# Made by scripts/lock.sh (make lock). Installed with --no-deps --require-hashes; see docs/alarms.md.'
  "${VENV:-.venv}/bin/uv" pip compile pyproject.toml --extra wandb --extra tensorboard --constraint constraints.txt \
    --python-version 3.11 --universal --generate-hashes --no-annotate --no-header --quiet "$@"
} > constraints-trackers.txt.part
mv constraints-trackers.txt.part constraints-trackers.txt
