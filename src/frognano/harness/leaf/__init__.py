"""Leaf: the default harness. Five typed tools, a short prompt, natural termination."""

from frognano.harness.leaf.agent import Leaf
from frognano.harness.leaf.prompt import DEFAULT, LeafPrompt
from frognano.harness.leaf.tools import TOOLS

__all__ = ["DEFAULT", "TOOLS", "Leaf", "LeafPrompt"]
