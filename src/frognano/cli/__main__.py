"""``python -m frognano.cli``."""

from frognano.cli.app import main

main()
