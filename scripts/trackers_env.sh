#!/usr/bin/env bash
# Makes a venv with FrogNano's base and both trackers, pinned, for the tests that use them for real:
#   scripts/trackers_env.sh [FOLDER]     prints the folder's Python
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/frognano/peers/trackers}
wanted=$(cat constraints-trackers.txt scripts/trackers_env.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat "$folder/.stamp" 2>/dev/null || true)" != "$wanted" ]; then
  uv=${VENV:-.venv}/bin/uv
  [ -x "$uv" ] || uv=$(command -v uv) || { echo "error: uv is missing: run make setup" >&2; exit 1; }
  "$uv" venv -q --clear --python "${PYTHON:-python3}" "$folder"
  "$uv" pip install -q --python "$folder/bin/python" --no-deps --require-hashes -r constraints-trackers.txt
  echo "$wanted" > "$folder/.stamp"
fi
echo "$folder/bin/python"
