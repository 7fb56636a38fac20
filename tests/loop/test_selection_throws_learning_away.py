"""Noise of a small validation set must not undo an iteration; a collapse must."""

from __future__ import annotations

import pytest

from frognano.loop.selection import select


@pytest.mark.parametrize(
    ("solved", "chosen"),
    [
        ((4, 3), 1),  # what happened: 4 of 32 before an iteration, 3 of 32 after it
        ((4, 2), 1),  # what happened later
        ((4, 1), 0),
        ((3, 4), 1),
        ((4, 4), 1),
        ((0, 0), 1),
        ((8, 0), 0),  # a collapse
        ((8, 4), 0),
        ((8, 5), 1),
        ((2, 9, 8), 2),
        ((2, 9, 1), 1),
        ((32, 30), 0),
        ((5,), 0),
    ],
)
def test_selected_version(solved: tuple[int, ...], chosen: int) -> None:
    scores = [(f"v{i}", k / 32) for i, k in enumerate(solved)]
    assert select(scores, 32) == f"v{chosen}"


def test_more_trials_trust_smaller_differences() -> None:
    scores = [("before", 0.125), ("after", 0.094)]
    assert select(scores, 32) == "after"
    assert select(scores, 3200) == "before"


@pytest.mark.parametrize(("scores", "trials"), [([], 5), ([("v", 0.5)], 0)])
def test_nothing_to_select_from(scores: list[tuple[str, float]], trials: int) -> None:
    with pytest.raises(ValueError, match="at least one each"):
        select(scores, trials)
