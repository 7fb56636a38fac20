#!/usr/bin/env bash
# Another project in a virtual environment of its own: scripts/peer.sh NAME [FOLDER] installs scripts/peers/NAME.txt, every package
# pinned with its hashes, into ~/.cache/frognano/peers/NAME and prints its Python. Quick when nothing changed.
# PEER_PYTHON chooses the interpreter: a Python 3.11, for which the lists were made.
set -euo pipefail
cd "$(dirname "$0")/.."
names=$(ls scripts/peers | sed -n 's/\.txt$//p' | tr '\n' ' ')
name=${1:?which peer: one of $names}
list=scripts/peers/$name.txt
[ -f "$list" ] || { echo "error: no peer $name: there are $names" >&2; exit 1; }
place=${2:-${XDG_CACHE_HOME:-$HOME/.cache}/frognano/peers/$name}
stamp=$place/.frognano-peer
wanted=$(cat "$list" constraints-torch.txt scripts/peer.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  echo "peer: installing $name into $place" >&2
  uv=${VENV:-.venv}/bin/uv
  [ -x "$uv" ] || uv=$(command -v uv) || { echo "error: uv is missing: run make setup" >&2; exit 1; }
  [ ! -e "$place" ] || [ -f "$place/pyvenv.cfg" ] ||
    { echo "error: $place is no virtual environment: name another folder" >&2; exit 1; }
  # Made anew: what an older list asked for and this one does not would stay otherwise. A package that comes as source is built
  # with the setuptools of the list.
  "$uv" venv -q --clear --python "${PEER_PYTHON:-python3.11}" "$place" >&2
  "$uv" pip install -q --python "$place/bin/python" --no-deps --require-hashes -r "$list" --build-constraints "$list" >&2
  # torch by the pip of the list, in the build that pip is set up for. What it needs is in the list, but for the CUDA packages that
  # some builds want.
  if grep -q '^# torch' "$list"; then
    "$place/bin/python" -m pip --disable-pip-version-check --no-input -q install --no-compile --no-warn-conflicts \
      -r constraints-torch.txt >&2
  fi
  echo "$wanted" > "$stamp"
fi
echo "$place/bin/python"
