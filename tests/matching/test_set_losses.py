"""MMD and the diversity of sets against plain loops."""

import math

import pytest
import torch

from matching.set_losses import diversity, mmd


def random_sets(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain_mean_kernel(first: list[list[float]], second: list[list[float]]) -> float:
    total = 0.0
    for a in first:
        for b in second:
            total += math.exp(-0.5 * math.dist(a, b))
    return total / (len(first) * len(second))


def test_mmd_matches_a_plain_loop():
    photos, captions = random_sets(3, 4, 5), 0.5 + random_sets(6, 4, 5, seed=1)
    first = [member for photo in photos.tolist() for member in photo]
    second = [member for caption in captions.tolist() for member in caption]
    expected = (
        plain_mean_kernel(first, first)
        - 2 * plain_mean_kernel(first, second)
        + plain_mean_kernel(second, second)
    )
    assert expected > 0.01
    assert mmd(photos, captions).item() == pytest.approx(expected, abs=1e-9)
    assert mmd(photos.float(), captions.float()).item() == pytest.approx(expected, abs=1e-5)
    assert mmd(photos, photos).item() == pytest.approx(0, abs=1e-9)


def test_mmd_is_close_in_a_large_batch_and_its_gradient_is_finite():
    # Beyond 25 rows torch.cdist goes through a matrix product, which rounds small distances.
    photos = torch.nn.functional.normalize(random_sets(20, 4, 5), dim=-1)
    captions = torch.nn.functional.normalize(random_sets(30, 4, 5, seed=1), dim=-1)
    expected = mmd(photos, captions).item()
    rounded = photos.float().requires_grad_()
    loss = mmd(rounded, captions.float())
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    loss.backward()
    exact = photos.clone().requires_grad_()
    mmd(exact, captions).backward()
    torch.testing.assert_close(rounded.grad.double(), exact.grad, atol=1e-6, rtol=0)


def test_diversity_matches_a_plain_loop():
    slots = random_sets(2, 3, 4, 5)
    total = count = 0
    for group in slots.tolist():
        for members in group:
            unit = [[x / math.hypot(*m) for x in m] for m in members]
            for i in range(4):
                for j in range(i + 1, 4):
                    total += math.exp(-2 * math.dist(unit[i], unit[j]) ** 2)
                    count += 1
    assert diversity(slots).item() == pytest.approx(total / count, abs=1e-9)


def test_diversity_of_equal_and_of_single_members():
    assert diversity(random_sets(2, 1, 5).expand(2, 4, 5)).item() == pytest.approx(1)
    assert diversity(random_sets(2, 1, 5)).item() == 0


def test_gradients():
    photos, captions = random_sets(2, 3, 4), random_sets(3, 3, 4, seed=1)
    photos.requires_grad_()
    assert torch.autograd.gradcheck(mmd, (photos, captions.requires_grad_()))
    assert torch.autograd.gradcheck(diversity, (photos,))
