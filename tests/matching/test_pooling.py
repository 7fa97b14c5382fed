"""Plain poolings against loops over the members of each set."""

import pytest
import torch

from matching.config import VseInfinityConfig
from matching.models.pooling import make_pooling
from tests.matching.onnx_parity import dimension, exported_session, run

PLAIN = {
    "mean": lambda members: [sum(column) / len(column) for column in zip(*members, strict=True)],
    "max": lambda members: [max(column) for column in zip(*members, strict=True)],
    "first": lambda members: members[0],
    "last": lambda members: members[-1],
}


class AllPoolings(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = VseInfinityConfig()
        self.poolings = torch.nn.ModuleList(make_pooling(kind, config, 9) for kind in PLAIN)

    def forward(self, features: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return torch.stack([pooling(features, mask) for pooling in self.poolings])


def plain(kind: str, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = []
    for members, inside in zip(features.tolist(), mask.tolist(), strict=True):
        rows.append(PLAIN[kind]([m for m, i in zip(members, inside, strict=True) if i]))
    return torch.tensor(rows)


@pytest.mark.parametrize("kind", PLAIN)
def test_matches_a_loop_with_and_without_a_mask(kind):
    torch.manual_seed(1)
    pooling = make_pooling(kind, VseInfinityConfig(), 9)
    features = torch.randn(4, 6, 3)
    mask = torch.rand(4, 6) < 0.5
    mask[:, 3] = True
    hidden = features.masked_fill(~mask[..., None], 1e4)  # padding may hold anything
    expected = plain(kind, features, mask)
    torch.testing.assert_close(pooling(hidden, mask), expected, atol=1e-5, rtol=0)
    whole = plain(kind, features, torch.ones(4, 6, dtype=torch.bool))
    torch.testing.assert_close(pooling(features), whole, atol=1e-5, rtol=0)
    pooling.freeze()
    torch.testing.assert_close(pooling(features), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", PLAIN)
def test_gradients(kind):
    torch.manual_seed(2)
    pooling = make_pooling(kind, VseInfinityConfig(), 9)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    features = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pooling(x, mask), (features,))


def test_exports_with_parity_at_other_sizes():
    torch.manual_seed(3)
    module = AllPoolings()
    sizes = {0: dimension("sets"), 1: dimension("members")}
    example = torch.randn(3, 4, 5), torch.ones(3, 4, dtype=torch.bool)
    session = exported_session(module, example, (sizes, sizes), ["x", "mask"], ["pooled"])
    for sets, members in ((1, 2), (6, 7)):
        features, mask = torch.randn(sets, members, 5), torch.rand(sets, members) < 0.5
        mask[:, 1] = True
        found = torch.from_numpy(run(session, features, mask)[0])
        torch.testing.assert_close(found, module(features, mask), atol=1e-5, rtol=0)


def test_an_unknown_pooling_is_named():
    with pytest.raises(ValueError, match="pooling is 'sum': it must be one of gpo, mean"):
        make_pooling("sum", VseInfinityConfig(), 9)
