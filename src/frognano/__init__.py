"""FrogNano: turn a small local language model into a strong coding agent, without a teacher.

Importing this package costs nothing: heavy imports (torch, transformers) happen in the modules that use them.
"""

__version__ = "0.1.0"
