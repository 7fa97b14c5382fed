"""GPO against a plain loop over dimensions, and a real bidirectional GRU over each set's size."""

import math

import torch

from matching.models.gpo import GeneralizedPooling


def plain_pooling(pooling: GeneralizedPooling, members: torch.Tensor) -> torch.Tensor:
    """members (n, D): one set without padding."""
    size, dimensions = members.shape
    encoding = torch.zeros(size, 32)
    for position in range(size):
        for i in range(16):
            angle = position * 10000 ** (-2 * i / 32)
            encoding[position, 2 * i] = math.sin(angle)
            encoding[position, 2 * i + 1] = math.cos(angle)
    both = torch.nn.GRU(32, 32, bidirectional=True, batch_first=True)
    own = pooling.state_dict()
    both.load_state_dict(
        {
            **{n[12:]: t for n, t in own.items() if n.startswith("forward_gru.")},
            **{f"{n[13:]}_reverse": t for n, t in own.items() if n.startswith("backward_gru.")},
        },
    )
    states, _ = both(encoding[None])
    averaged = (states[0, :, :32] + states[0, :, 32:]) / 2
    weights = (pooling.score(averaged).squeeze(-1) / 0.1).softmax(0)
    pooled = []
    for d in range(dimensions):
        ranked = sorted(members[:, d].tolist(), reverse=True)
        pooled.append(sum(w * v for w, v in zip(weights.tolist(), ranked, strict=True)))
    return torch.tensor(pooled)


def test_matches_a_plain_loop_at_every_size():
    torch.manual_seed(3)
    pooling = GeneralizedPooling(9)
    features = torch.randn(9, 9, 5)
    mask = torch.arange(9)[None] < torch.arange(1, 10)[:, None]
    with torch.no_grad():
        pooled = pooling(features, mask)
        for row in range(9):
            expected = plain_pooling(pooling, features[row, : row + 1])
            torch.testing.assert_close(pooled[row], expected, atol=1e-5, rtol=0)
            whole = pooling(features[row : row + 1, : row + 1])[0]  # without a mask
            torch.testing.assert_close(whole, expected, atol=1e-5, rtol=0)


def test_padding_and_frozen_table_change_nothing():
    torch.manual_seed(4)
    pooling = GeneralizedPooling(12)
    features = torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    padded = torch.cat([features, torch.full((2, 4, 8), 1e3)], dim=1)
    padded_mask = torch.cat([mask, torch.zeros(2, 4, dtype=torch.bool)], dim=1)
    with torch.no_grad():
        expected = pooling(features, mask)
        torch.testing.assert_close(pooling(padded, padded_mask), expected, atol=1e-6, rtol=0)
        pooling.freeze()
        torch.testing.assert_close(pooling(padded, padded_mask), expected, atol=1e-6, rtol=0)
