#!/bin/sh
# SWE-smith in an environment of its own, on disk: sh benchmarks/peers/swesmith_peer.sh; prints its python.
# swebench is pinned since 5.x no longer has modules that swesmith 0.0.9 imports.
set -eu
place="${XDG_CACHE_HOME:-$HOME/.cache}/frognano/peers/swesmith"
if [ ! -x "$place/bin/python" ]; then
    uv venv -q --python "${PYTHON:-python3.11}" "$place"
    uv pip install -q --python "$place/bin/python" "swesmith[generate]==0.0.9" "swebench==4.1.0"
fi
echo "$place/bin/python"
