"""Named configurations: a system, its settings and how it is trained.

`paper_...` names carry the recipes of the papers and their code for the field's features; all
others are ours, for features of python -m matching.prepare. Every setting can be changed by a flag
of python -m matching.train.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from matching.config import EncoderConfig, Training
from matching.systems import SYSTEMS


@dataclass(frozen=True)
class Preset:
    system: str
    about: str
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def model_config(self) -> EncoderConfig:
        return SYSTEMS[self.system][1](**self.model)

    def training_config(self) -> Training:
        return Training(**self.training)


# Large groups of random photos; contrastive.
_EMBEDDER = {"contrastive_weight": 1.0, "region_drop": 0.3, "word_drop": 0.1}
# Groups of photos that stage 1 takes for each other.
_SCORER = {
    "epochs": 6,
    "groups": 8,
    "group_size": 16,
    "pool_size": 1024,
    "start": "stage1",
    "learning_rate": 5e-4,
    "backbone_learning_rate": 5e-5,
    "region_drop": 0.1,
    "word_drop": 0.05,
    "contrastive_weight": 1.0,
}
_CAMP = {**_SCORER, "binary_weight": 0.5, "gate_weight": 0.5}
# Also against captions with one wrong word; gates of matching pairs opened further.
_CAMP_SWAPS = {
    **_CAMP,
    "swap_weight": 0.5,
    "gate_weight": 1.0,
    "gate_positive": 2.0,
    "gate_hard": 0.3,
}
# From there, with gates further apart.
_CAMP_AGREEMENT = {
    **_CAMP_SWAPS,
    "start": "checkpoint",
    "learning_rate": 3e-4,
    "backbone_learning_rate": 1e-4,
    "gate_weight": 2.0,
    "gate_positive": 1.8,
    "gate_hard": 0.1,
}
_RANKED = {**_SCORER, "contrastive_weight": 0.0, "ranking_weight": 1.0}
_SET = {
    **_EMBEDDER,
    "epochs": 2,
    "start": "stage1",
    "learning_rate": 5e-4,
    "mmd_weight": 0.01,
    "diversity_weight": 0.01,
}

# What the papers' regions and words are (systems of 2018 to 2020).
_FIELD = {"dimension": 1024, "region_channels": 2048, "region_encoder": "linear", "dropout": 0.0}
_FIELD_BIGRU = {**_FIELD, "word_encoder": "bigru"}
_HINGE = {
    "ranking_weight": 1.0,
    "reduction": "sum",
    "epoch_of": "captions",
    "group_size": 128,
    "optimiser": "adam",
    "weight_decay": 0.0,
    "learning_rate": 2e-4,
    "schedule": "step",
    "average_decay": 0.0,
}

_PAPER_FORM = {"gate": "elementwise"}
_RELEASE_FORM = {
    "messages": "refined",
    "fusion": "concat",
    "aggregation": "mlp",
    "score": "mlp_concat",
    "normalise_features": False,
}
_BASE = {"messages": "none", "gate": "none", "fusion": "none", "residual": False, "score": "cosine"}

PRESETS: dict[str, Preset] = {
    "vse_infinity": Preset("vse_infinity", "stage 1 on published backbones", {}, _EMBEDDER),
    "vse_plus_plus": Preset(
        "vse_infinity",
        "VSE++ on our features: averages instead of GPO",
        {"region_pooling": "mean", "word_pooling": "mean"},
        _EMBEDDER,
    ),
    "camp": Preset("camp", "CAMP, form `fast`", {}, _CAMP),
    "camp_swaps": Preset(
        "camp",
        "CAMP, form `fast`, also against wrong words",
        {},
        _CAMP_SWAPS,
    ),
    "camp_agreement": Preset(
        "camp",
        "camp_swaps trained on, with agreement in its score: scorer of the engines",
        {"score": "mlp_agreement"},
        _CAMP_AGREEMENT,
    ),
    "camp_paper": Preset("camp", "CAMP as the paper writes it", _PAPER_FORM, _CAMP),
    "camp_release": Preset("camp", "CAMP as the authors released it", _RELEASE_FORM, _CAMP),
    "camp_base": Preset(
        "camp", "CAMP's base model: attention pooling, cosine", _BASE, {**_EMBEDDER, "epochs": 4}
    ),
    "dive": Preset("dive", "DivE: sets of four embeddings", {}, _SET),
    "mmca": Preset(
        "mmca", "MMCA: S = i0.c0 + alpha i1.c1", {"dimension": 128}, {**_SCORER, "epochs": 1}
    ),
    "scan_t2i": Preset("scan", "SCAN, words attend to regions, LSE", {}, _RANKED),
    "scan_i2t": Preset(
        "scan",
        "SCAN, regions attend to words, LSE",
        {"direction": "i2t", "attention_temperature": 4.0, "aggregate_temperature": 5.0},
        _RANKED,
    ),
    "scan_t2i_mean": Preset("scan", "SCAN t2i, AVG", {"aggregate": "mean"}, _RANKED),
    "scan_i2t_mean": Preset(
        "scan",
        "SCAN i2t, AVG",
        {"direction": "i2t", "attention_temperature": 4.0, "aggregate": "mean"},
        _RANKED,
    ),
}

# The variants of GPO, VSE-infinity, supplement tables 1 to 3 and 6 to 8.
_POOLINGS = {
    "average": {"region_pooling": "mean", "word_pooling": "mean"},
    "maximum": {"region_pooling": "max", "word_pooling": "max"},
    "first": {"region_pooling": "mean", "word_pooling": "first"},
    "transformer": {"pooling_generator": "transformer"},
    "mlp": {"pooling_generator": "mlp"},
    "interpolation": {"pooling_generator": "interpolation"},
    "index": {"pooling_positions": "index"},
    "per_dimension": {"pooling_per_dimension": True},
    "feature_fed": {"pooling_features": True},
}
PRESETS |= {
    f"vse_infinity_{name}": replace(
        PRESETS["vse_infinity"], about=f"VSE-infinity, pooling: {name.replace('_', ' ')}", model=m
    )
    for name, m in _POOLINGS.items()
}

# CAMP, table 3: the rows below full CAMP, each a change of settings.
_COSINE_LOSS = {"binary_weight": 0.0, "gate_weight": 0.0}
TABLE3: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "base_model": (_BASE, _COSINE_LOSS),
    "without_cross_attention": ({"messages": "mean"}, {}),
    "without_fusion": (
        {"fusion": "none", "gate": "none", "residual": False, "score": "cosine"},
        _COSINE_LOSS,
    ),
    "without_gates": ({"gate": "none"}, {"gate_weight": 0.0}),
    "without_residual": ({"residual": False}, {}),
    "without_attention_aggregation": ({"aggregation": "mean"}, {}),
    "concat": ({"fusion": "concat"}, {}),
    "product": ({"fusion": "product"}, {}),
    "joint_embedding": ({"score": "cosine"}, {"binary_weight": 0.0}),
    "ranking_loss": ({}, {"binary_weight": 0.0, "contrastive_weight": 0.0, "ranking_weight": 1.0}),
    "without_hardest": ({}, {"hardest": False}),
}
PRESETS |= {
    f"camp_{name}": Preset(
        "camp", f"CAMP, table 3: {name.replace('_', ' ')}", model, {**_CAMP, **training}
    )
    for name, (model, training) in TABLE3.items()
}

PRESETS |= {
    "paper_vse_plus_plus": Preset(
        "vse_infinity",
        "VSE++: GRU, last state (Faghri et al., 2018)",
        {**_FIELD, "word_encoder": "gru", "region_pooling": "mean", "word_pooling": "last"},
        {**_HINGE, "epochs": 30, "decay_epoch": 15},
    ),
    "paper_vse_infinity_bigru": Preset(
        "vse_infinity",
        "VSE-infinity, regions + BiGRU",
        {**_FIELD_BIGRU, "region_encoder": "linear_mlp", "hidden": 512},
        {
            **_HINGE,
            "epochs": 25,
            "decay_epoch": 15,
            "learning_rate": 5e-4,
            "optimiser": "adamw",
            "weight_decay": 0.01,  # the authors' BiGRU branch leaves AdamW's default
            "all_negatives_epochs": 1,
            "region_drop": 0.2,
            "word_drop": 0.2,
        },
    ),
    "paper_vse_infinity_bert": Preset(
        "vse_infinity",
        "VSE-infinity, regions + BERT",
        {**_FIELD, "word_encoder": "bert", "region_encoder": "linear_mlp", "hidden": 512},
        {
            **_HINGE,
            "epochs": 25,
            "decay_epoch": 15,
            "learning_rate": 5e-4,
            "backbone_learning_rate": 5e-5,
            "optimiser": "adamw",
            "weight_decay": 1e-4,
            "all_negatives_epochs": 1,
            "region_drop": 0.2,
            "word_drop": 0.2,
        },
    ),
    "paper_scan_t2i": Preset(
        "scan",
        "SCAN t2i, Flickr30K",
        _FIELD_BIGRU,
        {**_HINGE, "epochs": 30, "decay_epoch": 15},
    ),
    "paper_scan_i2t": Preset(
        "scan",
        "SCAN i2t, Flickr30K",
        {
            **_FIELD_BIGRU,
            "direction": "i2t",
            "attention_temperature": 4.0,
            "aggregate_temperature": 5.0,
        },
        {**_HINGE, "epochs": 30, "decay_epoch": 15},
    ),
    "paper_camp": Preset(
        "camp",
        "CAMP, the paper's recipe: Adam 2e-4 for 15 epochs, 2e-5 for 25",
        {**_FIELD_BIGRU, **_PAPER_FORM, "key_dimension": 1024, "normalise_features": False},
        {
            **_HINGE,
            "ranking_weight": 0.0,
            "binary_weight": 1.0,
            "epoch_of": "photos",
            "epochs": 40,
            "decay_epoch": 15,
        },
    ),
    "paper_dive": Preset(
        "dive",
        "DivE, bottom-up regions + BiGRU",
        {
            **_FIELD_BIGRU,
            "region_encoder": "residual_mlp",
            "hidden": 512,
            "dropout": 0.1,
            "head_dimension": 512,
            "feed_forward": 4096,
        },
        {
            "ranking_weight": 1.0,
            "group_size": 200,
            "captions_a_photo": 5,
            "epochs": 80,
            "learning_rate": 1e-3,
            "weight_decay": 1e-4,
            "warmup": 0.0,
            "clip": 1.0,
            "region_drop": 0.2,
            "word_drop": 0.2,
            "mmd_weight": 0.01,
            "diversity_weight": 0.01,
            "average_decay": 0.0,
        },
    ),
    "paper_mmca": Preset(
        "mmca",
        "MMCA: regions + frozen BERT",
        {**_FIELD, "dimension": 256, "word_encoder": "bert", "dropout": 0.1},
        {
            **_HINGE,
            "group_size": 64,
            "epochs": 20,
            "decay_epoch": 10,
            "backbone_learning_rate": 0.0,
        },
    ),
}

# The staged recipe of CAMP's release (systems differ between the stages, weights carry over).
_RELEASE_FIELD = {**_FIELD_BIGRU, **_RELEASE_FORM, "key_dimension": 1024}
_RELEASE = {
    **_HINGE,
    "epoch_of": "photos",
    "ranking_weight": 0.0,
    "binary_weight": 1.0,
    "optimiser": "sgd",
    "learning_rate": 0.01,
    "weight_decay": 1e-4,
    "start": "checkpoint",
}
PRESETS |= {
    "paper_camp_release_1": Preset(
        "camp",
        "CAMP's release, stage 1: messages alone, cosine, ranking loss",
        {
            **_RELEASE_FIELD,
            "fusion": "none",
            "gate": "none",
            "residual": False,
            "aggregation": "mean",
            "score": "cosine",
        },
        {
            **_HINGE,
            "epoch_of": "photos",
            "group_size": 256,
            "learning_rate": 1e-3,
            "epochs": 110,
            "decay_epoch": 50,
        },
    ),
    "paper_camp_release_2": Preset(
        "camp",
        "CAMP's release, stage 2: fusion, aggregation and score alone",
        _RELEASE_FIELD,
        {**_RELEASE, "epochs": 65, "decay_epoch": 45, "trained": "fusion"},
    ),
    "paper_camp_release_3": Preset(
        "camp",
        "CAMP's release, stage 3: everything",
        _RELEASE_FIELD,
        {**_RELEASE, "epochs": 150, "decay_epoch": 50},
    ),
}
