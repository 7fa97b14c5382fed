"""Word encoders against packed GRUs, a loop over time, and a plainly written BERT."""

import math

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from matching.config import EncoderConfig
from matching.models.bert import Bert, published_name
from matching.models.recurrent import RecurrentReader
from matching.models.text_backbone import TransformerLayer
from matching.models.word_encoders import make_word_encoder
from tests.matching.onnx_parity import dimension, exported_session, run

D = 6
CAPTIONS = torch.tensor([[1, 5, 9, 2, 0], [1, 2, 0, 0, 0], [1, 7, 7, 3, 2], [4, 0, 0, 0, 0]])


def reader_of(bidirectional: bool) -> RecurrentReader:
    torch.manual_seed(5)
    reader = RecurrentReader(12, 4, D, bidirectional)
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter)
    return reader.eval()


def small_bert() -> Bert:
    torch.manual_seed(6)
    bert = Bert(width=8, layers=2, heads=2, vocabulary_size=20, largest_caption=16)
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return bert.eval()


def loop_gru(gru: torch.nn.GRU, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The equations of a GRU (reset, update, new) over one caption."""
    state, states = torch.zeros(D), []
    for x in inputs:
        read = (gru.weight_ih_l0 @ x + gru.bias_ih_l0).chunk(3)
        kept = (gru.weight_hh_l0 @ state + gru.bias_hh_l0).chunk(3)
        reset, update = torch.sigmoid(read[0] + kept[0]), torch.sigmoid(read[1] + kept[1])
        new = torch.tanh(read[2] + reset * kept[2])
        state = (1 - update) * new + update * state
        states.append(state)
    return states


@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_matches_a_loop(bidirectional):
    reader = reader_of(bidirectional)
    with torch.no_grad():
        words, mask = reader(CAPTIONS)
        assert torch.equal(mask, CAPTIONS != 0)
        for row, caption in enumerate(CAPTIONS.tolist()):
            inputs = [reader.embed.weight[i] for i in caption if i != 0]
            expected = loop_gru(reader.forward_gru, inputs)
            if bidirectional:
                back = loop_gru(reader.backward_gru, inputs[::-1])[::-1]
                expected = [(a + b) / 2 for a, b in zip(expected, back, strict=True)]
            size = len(inputs)
            torch.testing.assert_close(words[row, :size], torch.stack(expected), atol=1e-5, rtol=0)
            assert words[row, size:].abs().sum() == 0


def test_recurrent_matches_a_packed_bidirectional_gru():
    reader = reader_of(bidirectional=True)
    both = torch.nn.GRU(4, D, bidirectional=True, batch_first=True)
    both.load_state_dict(  # the authors' names, one to one
        {
            **reader.forward_gru.state_dict(),
            **{f"{n}_reverse": w for n, w in reader.backward_gru.state_dict().items()},
        },
    )
    lengths = (CAPTIONS != 0).sum(1)
    with torch.no_grad():
        packed = pack_padded_sequence(reader.embed(CAPTIONS), lengths, True, enforce_sorted=False)
        states, _ = pad_packed_sequence(both(packed)[0], batch_first=True)
        expected = (states[..., :D] + states[..., D:]) / 2
        torch.testing.assert_close(reader(CAPTIONS)[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("make", [lambda: reader_of(True), lambda: reader_of(False), small_bert])
def test_padding_and_order_of_captions_change_nothing(make):
    reader = make()
    padded = torch.cat([CAPTIONS, torch.zeros(4, 3, dtype=torch.int64)], dim=1)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        words, mask = reader(CAPTIONS)
        more, _ = reader(padded[order])
    expected = words[order][mask[order]]
    torch.testing.assert_close(more[:, :5][mask[order]], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [lambda: reader_of(True), small_bert])
def test_gradients(make):
    reader = make().double()
    table = reader.embed if isinstance(reader, RecurrentReader) else reader.words

    def words_of(weight: torch.Tensor) -> torch.Tensor:
        name = "embed.weight" if isinstance(reader, RecurrentReader) else "words.weight"
        words, mask = torch.func.functional_call(reader, {name: weight}, (CAPTIONS[:2],))
        return words[mask]

    weight = table.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(words_of, (weight,))


@pytest.mark.parametrize("make", [lambda: reader_of(True), small_bert])
def test_exports_with_parity_at_other_lengths(make):
    reader = make()
    shapes = ({0: dimension("captions"), 1: torch.export.Dim("words", min=1, max=16)},)
    session = exported_session(reader, (CAPTIONS,), shapes, ["word_ids"], ["words", "mask"])
    torch.manual_seed(8)
    for captions, length in ((1, 3), (3, 9), (6, 16)):
        lengths = torch.randint(1, length + 1, (captions, 1))
        ids = torch.randint(1, 12, (captions, length)) * (torch.arange(length) < lengths)
        with torch.no_grad():
            words, mask = reader(ids)
        assert words[mask].std() > 0.2
        found, found_mask = run(session, ids)
        assert (found_mask == mask.numpy()).all()
        found = torch.from_numpy(found)
        torch.testing.assert_close(found[mask], words[mask], atol=1e-4, rtol=0)


def plain_bert(bert: Bert, pieces: list[int]) -> torch.Tensor:
    """One caption without padding, from the published names of the weights."""
    weights = {published_name(n): w for n, w in bert.state_dict().items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        x = x - x.mean()
        x = x / math.sqrt(x.square().mean().item() + 1e-12)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    def attended(rows: list[torch.Tensor], i: int, name: str) -> torch.Tensor:
        query = linear(rows[i], f"{name}.self.query")
        keys = [linear(row, f"{name}.self.key") for row in rows]
        values = [linear(row, f"{name}.self.value") for row in rows]
        heads = []
        for head in (slice(0, 4), slice(4, 8)):
            logits = [(query[head] @ key[head]).item() / math.sqrt(4) for key in keys]
            total = sum(math.exp(x) for x in logits)
            parts = zip(logits, values, strict=True)
            heads.append(sum(math.exp(x) / total * value[head] for x, value in parts))
        return torch.cat(heads)

    tables = [f"embeddings.{n}_embeddings.weight" for n in ("word", "position", "token_type")]
    words, positions, types = (weights[name] for name in tables)
    rows = [
        norm(words[piece] + positions[i] + types[0], "embeddings.LayerNorm")
        for i, piece in enumerate(pieces)
    ]
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        name = f"{layer}.attention"
        mixed = [attended(rows, i, name) for i in range(len(rows))]
        rows = [
            norm(row + linear(x, f"{name}.output.dense"), f"{name}.output.LayerNorm")
            for row, x in zip(rows, mixed, strict=True)
        ]
        wide = [linear(row, f"{layer}.intermediate.dense") for row in rows]
        wide = [x * 0.5 * (1 + torch.erf(x / math.sqrt(2))) for x in wide]
        rows = [
            norm(row + linear(x, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
            for row, x in zip(rows, wide, strict=True)
        ]
    return torch.stack(rows)


def test_bert_matches_a_plainly_written_one():
    bert = small_bert()
    with torch.no_grad():
        words, _ = bert(CAPTIONS)
        for row, caption in enumerate(CAPTIONS.tolist()):
            pieces = [i for i in caption if i != 0]
            expected = plain_bert(bert, pieces)
            torch.testing.assert_close(words[row, : len(pieces)], expected, atol=1e-5, rtol=1e-5)


def test_bert_takes_published_weights():
    bert, other = small_bert(), Bert(8, 2, 2, 20, 16)
    weights = {f"bert.{published_name(n)}": w for n, w in bert.state_dict().items()}
    other.load_published({**weights, "bert.pooler.dense.bias": torch.zeros(8)}, "bert.")
    assert all(torch.equal(w, other.state_dict()[n]) for n, w in bert.state_dict().items())
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    with pytest.raises(ValueError, match=r"intermediate.*has shape \(3,\), expected \(32, 8\)"):
        other.load_published({**weights, name: torch.zeros(3)}, "bert.")
    with pytest.raises(ValueError, match="lack 'bert.encoder.layer.1.intermediate"):
        other.load_published({n: w for n, w in weights.items() if n != name}, "bert.")


def test_a_transformer_layer_without_arguments_is_that_of_minilm():
    layer = TransformerLayer()
    assert layer.query.weight.shape == (384, 384)
    assert layer.heads == 12
    assert layer.dropout.p == 0.0


def test_encoders_by_name():
    base = {"dimension": D, "vocabulary_size": 12, "word_dimension": 4}
    for kind, directions in (("gru", 1), ("bigru", 2)):
        text, words = make_word_encoder(EncoderConfig(word_encoder=kind, **base))
        read, mask = text(CAPTIONS)
        assert words(read).shape == (4, 5, D)
        assert torch.equal(mask, CAPTIONS != 0)
        assert sum(isinstance(m, torch.nn.GRU) for m in text.modules()) == directions
        assert text.embed.weight.abs().max() <= 0.1
    with pytest.raises(ValueError, match="vocabulary_size is 0"):
        make_word_encoder(EncoderConfig(word_encoder="bigru"))
    with pytest.raises(ValueError, match="word_encoder is 'lstm'"):
        make_word_encoder(EncoderConfig(word_encoder="lstm"))


def test_bert_base_has_the_published_size():
    with torch.device("meta"):
        text, words = make_word_encoder(EncoderConfig(word_encoder="bert", dimension=D))
    count = sum(p.numel() for p in text.parameters())
    assert count == 109_482_240 - 768 * 769  # the published count without its pooler
    assert words.weight.shape == (D, 768)


def test_a_caption_too_long_for_bert_is_named():
    with pytest.raises(ValueError, match="17 pieces, BERT reads at most 16"):
        small_bert()(torch.ones(2, 17, dtype=torch.int64))
