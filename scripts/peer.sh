#!/usr/bin/env bash
# Another project in a virtual environment of its own: scripts/peer.sh NAME installs scripts/peers/NAME.txt, every version pinned,
# into ~/.cache/frognano/peers/NAME and prints its Python. Quick when nothing changed. PEER_PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?which peer: one of $(ls scripts/peers | sed 's/\.txt$//' | tr '\n' ' ')}
list=scripts/peers/$name.txt
[ -f "$list" ] || { echo "error: no peer $name: there are $(ls scripts/peers | sed 's/\.txt$//' | tr '\n' ' ')" >&2; exit 1; }
place=${XDG_CACHE_HOME:-$HOME/.cache}/frognano/peers/$name
wanted=$(cat "$list" constraints-torch.txt | sha256sum | cut -d' ' -f1)
if [ "$(cat "$place/.frognano-peer" 2>/dev/null || true)" != "$wanted" ]; then
  echo "peer: installing $name into $place" >&2
  python=${PEER_PYTHON:-$(command -v python3.11 || command -v python3)}
  rm -f "$place/.frognano-peer"
  [ -x "$place/bin/python" ] || "$python" -m venv "$place" >&2
  pip() { "$place/bin/python" -m pip --disable-pip-version-check --no-input -q "$@" >&2; }
  # torch with what it needs, in the build that pip is set up for; all else without dependencies: the list is complete.
  pip install --no-compile -r constraints-torch.txt
  pip install --no-compile --no-deps -r "$list"
  echo "$wanted" > "$place/.frognano-peer"
fi
echo "$place/bin/python"
