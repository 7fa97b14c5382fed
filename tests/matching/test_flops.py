"""FLOPs against counts made by hand."""

import pytest
import torch
from torch import nn

from matching.flops import count_flops


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def counted(function, *inputs):
    counts = count_flops(Calls(function), inputs)
    assert counts["total"] == counts["products"] + counts["elementwise"]
    return counts["products"], counts["elementwise"]


@pytest.mark.parametrize("leading", [(4,), (2, 3)])
def test_linear(leading):
    rows = torch.Size(leading).numel()
    x = torch.randn(*leading, 5)
    counts = count_flops(nn.Linear(5, 7), (x,))
    assert counts["products"] == 2 * rows * 5 * 7
    assert counts["elementwise"] == rows * 7  # the bias
    assert counted(lambda x: x @ torch.ones(5, 7), x) == (2 * rows * 5 * 7, 0)


def test_batched_products_and_einsum():
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    assert counted(torch.bmm, a, b) == (2 * 3 * 4 * 5 * 6, 0)
    einsum = counted(lambda a, b: torch.einsum("bij,bjk->bik", a, b), a, b)
    assert einsum == (2 * 3 * 4 * 5 * 6, 0)
    # One matrix for the whole batch: just as many operations.
    assert counted(torch.matmul, a, b[0]) == (2 * 3 * 4 * 5 * 6, 0)


def test_convolutions():
    # 8 outputs in time, 6 channels, each from 4 channels x 3 steps.
    plain = count_flops(nn.Conv1d(4, 6, 3), (torch.randn(2, 4, 10),))
    assert plain["products"] == 2 * (2 * 6 * 8) * (4 * 3)
    assert plain["elementwise"] == 2 * 6 * 8
    # Two groups see half of the channels; stride 2 and padding 1 make 4 x 4 of 8 x 8.
    grouped = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False)
    counts = count_flops(grouped, (torch.randn(1, 4, 8, 8),))
    assert (counts["products"], counts["elementwise"]) == (2 * (6 * 4 * 4) * (2 * 9), 0)


def test_softmax_attention():
    query, key, value = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 4)

    def attention(query, key, value):
        return (query @ key.transpose(-1, -2) / 8**0.5).softmax(-1) @ value

    products, elementwise = counted(attention, query, key, value)
    assert products == 2 * (2 * 3 * 5) * 8 + 2 * (2 * 3 * 4) * 5
    assert elementwise == 2 * (2 * 3 * 5)  # the scale and the softmax
    fused = nn.functional.scaled_dot_product_attention
    assert counted(fused, query[:, None], key[:, None], value[:, None])[0] == products


def test_elementwise_counts_the_larger_of_input_and_output():
    x = torch.randn(4, 6)
    assert counted(lambda x: x.sum(-1), x) == (0, 24)
    assert counted(lambda x: x + x[:1], x) == (0, 24)
    assert counted(lambda x: x[:, None] * x[None], x) == (0, 4 * 4 * 6)
    assert counted(lambda x: x.relu().exp(), x) == (0, 48)


def test_moving_is_free():
    x = torch.randn(4, 6)
    moved = counted(lambda x: torch.cat([x.T.reshape(4, 6), x.flip(0)], dim=1)[1:, ::2], x)
    assert moved == (0, 0)


def test_a_recurrent_layer_is_taken_apart_into_its_steps():
    gru = nn.GRU(4, 3, batch_first=True)
    counts = count_flops(gru, (torch.randn(2, 5, 4),))
    # Per step and row: 3 gates of 3 units, each from 4 inputs and 3 of the last state.
    assert counts["products"] == 2 * (2 * 5) * 9 * (4 + 3)


def test_any_method_can_be_counted():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4, bias=False)

        def embed(self, x):
            return self.linear(x)

    assert count_flops(Two(), (torch.randn(5, 3),), "embed")["total"] == 2 * 5 * 3 * 4


def test_an_operation_that_may_hide_products_is_an_error():
    @torch.library.custom_op("camplens_test::hidden", mutates_args=())
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    hidden.register_fake(torch.empty_like)
    with pytest.raises(ValueError, match="camplens_test.hidden"):
        counted(hidden, torch.randn(3, 3))
    with pytest.raises(ValueError, match="linalg_inv"):
        counted(torch.linalg.inv, torch.eye(3))
    with pytest.raises(ValueError, match="transposed"):
        count_flops(nn.ConvTranspose1d(2, 3, 2), (torch.randn(1, 2, 5),))
