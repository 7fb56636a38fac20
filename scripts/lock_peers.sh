#!/usr/bin/env bash
# Writes the hashes in scripts/peers/*.txt anew: scripts/lock_peers.sh [NAME…]. To change a version, edit its pin in the list and run this.
# The lists are what the peers' environments were seen to need, not what their metadata asks for: nothing is resolved here.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${VENV:-.venv}/bin/uv
[ -x "$uv" ] || uv=$(command -v uv) || { echo "error: uv is missing: run make setup" >&2; exit 1; }
[ $# -gt 0 ] || set -- $(ls scripts/peers | sed -n 's/\.txt$//p')
for name; do
  list=scripts/peers/$name.txt
  {
    sed -n '/^#/p' "$list"
    sed -nE 's/^([A-Za-z0-9._-]+==[^ ]+).*/\1/p' "$list" | grep -v '^torch==' |
      "$uv" pip compile - --no-deps --python-version 3.11.7 --generate-hashes --no-annotate --no-header --quiet
  } > "$list.part"
  mv "$list.part" "$list"
done
