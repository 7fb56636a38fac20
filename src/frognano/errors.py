"""The error that people see: its message is the whole text, names the thing and says the remedy."""


class FrogNanoError(RuntimeError):
    """Expected trouble. The command line prints the message without a traceback and exits with ``exit_code``."""

    exit_code = 1


class ConfigError(FrogNanoError):
    """A recipe, an option or an argument is wrong: nothing was started."""

    exit_code = 2
