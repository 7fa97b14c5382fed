"""DivE (kdwonn/DivE): regions and a BiGRU, the form that its authors' script trains."""

from __future__ import annotations

import re

import torch

from matching.config import DiveConfig
from matching.conversion.containers import Container
from matching.conversion.keys import (
    Converted,
    batch_norm,
    both,
    checked_vocabulary,
    fitted,
    renamed,
    shape_of,
    source_of,
    word_reader,
)
from matching.vocabulary import Vocabulary

_REPOSITORY = "https://github.com/kdwonn/DivE"
_HEADS = 4  # fixed in the authors' code; the weights do not tell
_SIMILARITIES = {"smooth_chamfer": "smooth_chamfer", "chamfer": "chamfer", "max": "max"}
# What changes the result without changing a name; the values are those of the authors' script.
_OPTIONS = {
    "arch": "slot",
    "spm_img_pos_enc_type": "none",
    "spm_txt_pos_enc_type": "sine",
    "spm_activation": "gelu",
    "img_res_pool": "max",
    "img_res_first_pool": False,
    "txt_pooling": "rnn",
    "txt_attention_input": "wemb",
    "gpo_rnn": True,
    "denominator": 2.0,
}


def _set_names(ours: str) -> dict[str, str]:
    """The set prediction module, by the first copy of its layers."""
    block = "spm.agg_block"
    attention, forward = f"{block}.layers.0.0", f"{block}.layers.0.2"
    names = {
        f"{block}.latents": f"{ours}.slots",
        f"{attention}.fn.to_q.weight": f"{ours}.attention.query.weight",
        f"{attention}.fn.to_k.weight": f"{ours}.attention.key.weight",
        f"{attention}.fn.to_v.weight": f"{ours}.attention.value.weight",
    }
    names |= both(f"{attention}.fn.to_out.0", f"{ours}.attention.output")
    names |= both(f"{attention}.norm", f"{ours}.slot_norm")
    names |= both(f"{attention}.norm_context", f"{ours}.context_norm")
    names |= both(f"{forward}.fn.net.0", f"{ours}.feed_forward.0")
    names |= both(f"{forward}.fn.net.3", f"{ours}.feed_forward.3")
    names |= both(f"{forward}.norm", f"{ours}.feed_forward_norm")
    names |= both(f"{block}.last_layer.0", f"{ours}.output_norm")
    return names | both("spm.residual_norm", f"{ours}.global_norm")


def _region_names() -> dict[str, str]:
    names = both("fc", "regions.linear") | both("mlp.fc1", "regions.mlp.widen")
    names |= both("mlp.fc2", "regions.mlp.narrow")
    return names | batch_norm("mlp.bn.bn", "regions.mlp.norm") | _set_names("region_set")


def _iterations(container: Container, part: str) -> int:
    """How often the shared layers are saved; copies that differ are not one iteration repeated."""
    weights, numbers = container.part(part), {0}
    for name, tensor in weights.items():
        match = re.match(r"(spm\.agg_block\.layers\.)(\d+)(\..*)", name)
        if not match:
            continue
        numbers.add(int(match[2]))
        first = weights.get(f"{match[1]}0{match[3]}")
        if first is None or first.shape != tensor.shape or not torch.equal(first, tensor):
            raise ValueError(
                f"{container.path}: {name} of the {part} part is not the same as in layer 0; only "
                "iterations that share their weights (--spm_weight_sharing) can be converted",
            )
    return max(numbers) + 1


def convert(container: Container, vocabulary: Vocabulary | None) -> Converted:
    container.require("dive", "DivE")
    for option, expected in _OPTIONS.items():
        container.require_option(option, expected)
    vocabulary = checked_vocabulary(container, vocabulary, with_mask=True)
    iterations = _iterations(container, "image")
    if _iterations(container, "text") != iterations:
        raise ValueError(f"{container.path}: photos and captions have other numbers of iterations")
    config = _config(container, vocabulary, iterations)
    copies = tuple(f"spm.agg_block.layers.{i}.*" for i in range(1, iterations))
    image, _ = renamed(container, "image", _region_names(), copies)
    text_names = word_reader(container.part("text")) | _set_names("word_set")
    text, _ = renamed(container, "text", text_names, copies)
    weights = fitted(container, "dive", config, image | text)
    return Converted("dive", config, weights, vocabulary, source=source_of(container, _REPOSITORY))


def _config(container: Container, vocabulary: Vocabulary, iterations: int) -> DiveConfig:
    block = "spm.agg_block"
    dimension, channels = shape_of(container, "image", "fc.weight", 2)
    inner = shape_of(container, "image", f"{block}.layers.0.0.fn.to_q.weight", 2)[0]
    if inner % _HEADS:
        raise ValueError(f"{container.path}: {inner} channels of attention do not fit 4 heads")
    similarity = container.options.get("eval_similarity", "smooth_chamfer")
    if similarity not in _SIMILARITIES:
        raise ValueError(
            f"{container.path} was evaluated by {similarity!r}; only {', '.join(_SIMILARITIES)} "
            "can be converted",
        )
    return DiveConfig(
        dimension=dimension,
        hidden=shape_of(container, "image", "mlp.fc1.weight", 2)[0],
        region_encoder="residual_mlp",
        region_channels=channels,
        word_encoder="bigru",
        vocabulary_size=len(vocabulary),
        word_dimension=shape_of(container, "text", "embed.weight", 2)[1],
        slots=shape_of(container, "image", f"{block}.latents", 2)[0],
        iterations=iterations,
        heads=_HEADS,
        head_dimension=inner // _HEADS,
        feed_forward=shape_of(container, "image", f"{block}.layers.0.2.fn.net.0.weight", 2)[0],
        similarity=_SIMILARITIES[similarity],
        alpha=float(container.options.get("temperature", 16.0)),
        compat=True,  # the authors' masking, which the weights were trained with
    )
