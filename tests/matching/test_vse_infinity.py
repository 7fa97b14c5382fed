"""VSE-infinity and VSE++ from end to end, against steps written out photo by photo."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from matching.config import VseInfinityConfig
from matching.models.vse_infinity import VseInfinity
from tests.matching.onnx_parity import dimension, exported_session, run

D, CHANNELS = 8, 10
CAPTIONS = torch.tensor([[1, 5, 9, 2, 0], [1, 2, 0, 0, 0], [1, 7, 7, 3, 2]])
FIELD = {
    "dimension": D,
    "hidden": 12,
    "region_encoder": "linear_mlp",
    "region_channels": CHANNELS,
    "word_encoder": "bigru",
    "vocabulary_size": 12,
    "word_dimension": 4,
}
VSE_PLUS_PLUS = FIELD | {
    "region_encoder": "linear",
    "word_encoder": "gru",
    "region_pooling": "mean",
    "word_pooling": "last",
}


def model_of(settings: dict) -> VseInfinity:
    torch.manual_seed(4)
    model = VseInfinity(VseInfinityConfig(**settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / sum(value**2 for value in x.tolist()) ** 0.5


class Scorer(torch.nn.Module):
    """Both encoders and the similarities in one graph."""

    def __init__(self, model: VseInfinity) -> None:
        super().__init__()
        self.model = model

    def forward(self, regions, region_mask, word_ids):
        photos = self.model.embed_photos(regions, region_mask)
        captions = self.model.embed_captions(word_ids)
        return self.model.similarity(photos, captions)


def test_vse_plus_plus_is_a_mean_of_regions_and_a_last_state():
    model = model_of(VSE_PLUS_PLUS)
    regions = torch.randn(2, 4, CHANNELS)
    with torch.no_grad():
        photos, captions = model.embed_photos(regions), model.embed_captions(CAPTIONS)
        for row in range(2):
            projected = [model.regions.linear(region) for region in regions[row]]
            torch.testing.assert_close(photos[row], unit(sum(projected) / 4), atol=1e-5, rtol=0)
        for row, caption in enumerate(CAPTIONS.tolist()):
            state, cell = torch.zeros(D), torch.nn.GRUCell(4, D)
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            gru = model.text.forward_gru
            cell.load_state_dict({name: getattr(gru, f"{name}_l0") for name in names})
            for word in caption:
                if word:
                    state = cell(model.text.embed.weight[word], state)
            torch.testing.assert_close(captions[row], unit(state), atol=1e-5, rtol=0)
        for photo in range(2):
            for caption in range(3):
                cosine = sum(
                    a * b
                    for a, b in zip(photos[photo].tolist(), captions[caption].tolist(), strict=True)
                )
                found = model.similarity(photos, captions)[photo, caption].item()
                assert found == pytest.approx(cosine, abs=1e-5)


def test_vse_infinity_pools_each_photo_and_caption_by_itself():
    model = model_of(FIELD)
    regions = torch.randn(3, 6, CHANNELS)
    mask = torch.tensor([[True] * 6, [True] * 2 + [False] * 4, [False, True] * 3])
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        photos = model.embed_photos(regions[order], mask[order])
        captions = model.embed_captions(torch.cat([CAPTIONS, CAPTIONS[:, :0]], 1)[order])
        for place, row in enumerate(order.tolist()):
            alone = model.embed_photos(regions[row : row + 1, mask[row]])[0]
            torch.testing.assert_close(photos[place], alone, atol=1e-5, rtol=0)
            words = CAPTIONS[row : row + 1, : int((CAPTIONS[row] != 0).sum())]
            caption = model.embed_captions(words)[0]
            torch.testing.assert_close(captions[place], caption, atol=1e-5, rtol=0)
            states, _ = model.text(words)
            table = model.word_pooling.coefficient_table()[words.shape[1] - 1]
            pooled = [
                sum(table[k].item() * v for k, v in enumerate(sorted(column, reverse=True)))
                for column in states[0].T.tolist()
            ]
            torch.testing.assert_close(caption, unit(torch.tensor(pooled)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("settings", [FIELD, VSE_PLUS_PLUS])
def test_gradients(settings):
    model = model_of(settings).double()
    mask = torch.tensor([[True] * 3, [True, False, True]])
    regions = torch.randn(2, 3, CHANNELS, dtype=torch.float64, requires_grad=True)

    def scores(x: torch.Tensor) -> torch.Tensor:
        return model.similarity(model.embed_photos(x, mask), model.embed_captions(CAPTIONS))

    assert torch.autograd.gradcheck(scores, (regions,))


def test_exports_with_parity_at_other_sizes():
    model = model_of(FIELD)
    model.freeze_pooling()
    photos, regions = dimension("photos"), torch.export.Dim("regions", min=1, max=256)
    words = {0: dimension("captions"), 1: torch.export.Dim("words", min=1, max=64)}
    session = exported_session(
        Scorer(model),
        (torch.randn(2, 4, CHANNELS), torch.ones(2, 4, dtype=torch.bool), CAPTIONS),
        ({0: photos, 1: regions}, {0: photos, 1: regions}, words),
        ["regions", "region_mask", "word_ids"],
        ["similarity"],
    )
    torch.manual_seed(5)
    for counts in ((5, 7, 4, 9), (1, 3, 6, 2)):
        inputs = (
            torch.randn(counts[0], counts[1], CHANNELS) * 2,
            torch.arange(counts[1]) < torch.randint(1, counts[1] + 1, (counts[0], 1)),
            torch.randint(1, 12, (counts[2], counts[3]))
            * (torch.arange(counts[3]) < torch.randint(1, counts[3] + 1, (counts[2], 1))),
        )
        with torch.no_grad():
            expected = Scorer(model)(*inputs)
        assert expected.std() > 0.1
        found = torch.from_numpy(run(session, *inputs)[0])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_largest_sets_follow_the_encoders():
    ours = VseInfinity(VseInfinityConfig(dimension=D, hidden=12))
    assert (ours.region_pooling.largest_set, ours.word_pooling.largest_set) == (36, 32)
    field = model_of(FIELD)
    assert (field.region_pooling.largest_set, field.word_pooling.largest_set) == (256, 64)
    assert field.embedding_width == D


def test_the_default_checkpoint_fits():
    folder = Path(__file__).parents[2] / "checkpoints" / "default" / "vse_infinity"
    saved = json.loads((folder / "config.json").read_text("utf-8"))["model"]
    sizes = {name: saved[name] for name in ("dimension", "hidden", "dropout")}
    VseInfinity(VseInfinityConfig(**sizes)).load_state_dict(load_file(folder / "model.safetensors"))
