"""How losses are put together, and the warning of a collapse."""

import pytest
import torch

from matching.config import Training
from matching.losses import binary, contrastive, ranking
from matching.models.scores import PairScores
from matching.recipe import SystemRecipe, gate_loss, score_loss


def recipe_of(**settings) -> SystemRecipe:
    made = SystemRecipe.__new__(SystemRecipe)
    made._config = Training(**settings)
    return made


def test_the_terms_add_up_with_their_weights():
    scores = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    config = Training(
        contrastive_weight=0.7, ranking_weight=0.2, binary_weight=0.1, reduction="mean"
    )
    expected = (
        0.7 * contrastive(3.0 * scores)
        + 0.2 * ranking(scores, 0.2, True, "mean", 1)
        + 0.1 * binary(scores, True, "mean")
    )
    torch.testing.assert_close(score_loss(scores, config, True, 3.0), expected)


def test_contrastive_with_several_captions_is_the_mean_of_its_squares():
    scores = torch.randn(1, 4, 12, generator=torch.Generator().manual_seed(0))
    config = Training(contrastive_weight=1.0, captions_a_photo=3)
    squares = [scores[:, :, [3 * photo + place for photo in range(4)]] for place in range(3)]
    expected = sum(contrastive(square) for square in squares) / 3
    torch.testing.assert_close(score_loss(scores, config, True, 1.0), expected)


def test_a_collapse_is_told_with_what_to_do():
    made = recipe_of(ranking_weight=1.0, reduction="sum", group_size=128)
    assert "--all-negatives-epochs" in made.warning(51.2, epoch=0)  # the 51.2 of VSE++'s users
    assert made.warning(40.0, epoch=0) is None
    warming = recipe_of(ranking_weight=1.0, reduction="sum", group_size=128, all_negatives_epochs=1)
    assert warming.warning(51.2, epoch=0) is None and warming.warning(51.2, epoch=1) is not None
    assert recipe_of(contrastive_weight=1.0).warning(51.2, epoch=0) is None


def test_gates_are_only_trained_where_there_are_gates():
    with pytest.raises(ValueError, match="no gates"):
        gate_loss(
            PairScores(torch.zeros(1, 2, 2)), torch.ones(1, 2, 3, dtype=torch.bool), Training()
        )
