"""Run after the tests, in the same process: one must pass and one must fail, or somebody rewrites outcomes."""


def test_must_pass() -> None:
    assert 1 + 1 == 2


def test_must_fail() -> None:
    assert 1 + 1 == 3
