"""Deletion and insertion against scores whose areas are known."""

import numpy as np
import pytest

from matching.deletion import area, curves, visible_masks
from matching.saliency import region_maps, word_maps

WEIGHTS = np.array([0.1, 0.4, 0.2, 0.3])


def score(visible):
    return visible @ WEIGHTS


def test_masks_hide_in_order():
    masks = visible_masks(np.array([2, 0, 1]), 3)
    assert masks.tolist() == [
        [True, True, True],
        [True, True, False],
        [False, True, False],
        [False, False, False],
    ]


def test_true_map_has_the_least_area():
    deletion, insertion = curves(score, WEIGHTS, 4)
    np.testing.assert_allclose(deletion, [1, 0.6, 0.3, 0.1, 0])
    np.testing.assert_allclose(insertion, [0, 0.4, 0.7, 0.9, 1])
    assert area(deletion) == pytest.approx((0.8 + 0.45 + 0.2 + 0.05) / 4)
    upside_down = curves(score, -WEIGHTS, 4)
    assert area(deletion) < 0.5 < area(upside_down[0])
    assert area(insertion) > 0.5 > area(upside_down[1])
    rng = np.random.default_rng(0)
    random = [area(curves(score, rng.random(4), 4)[0]) for _ in range(2000)]
    assert np.mean(random) == pytest.approx(0.5, abs=0.01)


def test_fewer_steps_than_parts():
    deletion, _ = curves(score, WEIGHTS, 2)
    np.testing.assert_allclose(deletion, [1, 0.3, 0])


def test_maps_by_hand():
    rng = np.random.default_rng(1)
    attention, gates, regions = rng.random((3, 5)), rng.random(3), rng.random(5)
    gates[2] = 0  # outside the caption: nothing of it counts
    maps = region_maps(attention, gates, regions)
    for r in range(5):
        expected = sum(attention[n, r] * gates[n] for n in range(3)) * regions[r]
        assert maps["attention_x_gate"][r] == pytest.approx(expected)
        assert maps["attention"][r] == pytest.approx(attention[0, r] + attention[1, r])
        assert maps["attention_max"][r] == max(attention[0, r], attention[1, r])
    looks = rng.random((5, 3))
    words = word_maps(looks, gates, regions)
    for n in range(3):
        expected = sum(looks[r, n] * regions[r] for r in range(5)) * gates[n]
        assert words["attention_x_gate"][n] == pytest.approx(expected)
        assert words["attention_max"][n] == max(looks[r, n] for r in range(5))
    np.testing.assert_array_equal(words["gate"], gates)
