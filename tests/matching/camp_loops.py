"""CAMP once more in loops over single numbers, and the settings of its forms and ablations."""

import math

import torch

from matching.config import CampConfig
from matching.models.camp import Camp

D, K = 12, 8
_FAST = {}
_PAPER = {"gate": "elementwise"}
_RELEASE = {
    "messages": "refined",
    "fusion": "concat",
    "aggregation": "mlp",
    "score": "mlp_concat",
    "normalise_features": False,
}
# The forms, then the rows of Table 3. The last two rows differ from CAMP by their loss alone.
FORMS = {
    "fast": _FAST,
    "paper": _PAPER,
    "release": _RELEASE,
    "base model": {"messages": "none", "score": "cosine"},
    "w/o cross-attn": {**_PAPER, "messages": "mean"},
    "w/o fusion": {**_PAPER, "fusion": "none", "score": "cosine"},
    "fusion w/o gates": {"gate": "none"},
    "w/o residual": {**_PAPER, "residual": False},
    "w/o attention-based aggregation": {**_PAPER, "aggregation": "mean"},
    "concat": {**_PAPER, "fusion": "concat"},
    "product": {**_PAPER, "fusion": "product"},
    "joint embedding": {**_PAPER, "score": "cosine"},
    "MLP + ranking loss": _PAPER,
    "BCE w/o hardest": _PAPER,
}
# The same ablations of the scalar gate, which are factored, and further mixtures.
MIXTURES = {
    "fast, mean messages": {"messages": "mean"},
    "fast, mean aggregation": {"aggregation": "mean"},
    "fast, concat": {"fusion": "concat"},
    "fast, product": {"fusion": "product"},
    "fast, w/o residual": {"residual": False},
    "fast, cosine": {"score": "cosine"},
    "fast, features as they are": {"normalise_features": False},
    "refined, normalised features": {"messages": "refined"},
    "refined, w/o fusion": {"messages": "refined", "fusion": "none", "score": "cosine"},
    "release, elementwise": {**_RELEASE, "gate": "elementwise"},
    "release, product, w/o gate": {**_RELEASE, "fusion": "product", "gate": "none"},
    "mean messages w/o fusion": {"messages": "mean", "fusion": "none", "aggregation": "mlp"},
    "fast, agreement": {"score": "mlp_agreement"},
    "refined, mlp aggregation, agreement": {
        "messages": "refined",
        "aggregation": "mlp",
        "score": "mlp_agreement",
    },
    "fast, concat, mean aggregation, agreement": {
        "fusion": "concat",
        "aggregation": "mean",
        "score": "mlp_agreement",
    },
    "base model with an MLP": {"messages": "none", "score": "mlp_concat", "aggregation": "mlp"},
}


def made(settings: dict, seed: int = 5, scale: float = 1.5) -> Camp:
    """A small CAMP; fresh weights score nearly everything alike, so they are widened."""
    torch.manual_seed(seed)
    model = Camp(CampConfig(dimension=D, key_dimension=K, hidden=16, dropout=0.0, **settings))
    with torch.no_grad():
        for part in (model.photo, model.caption, getattr(model, "score", torch.nn.Identity())):
            for name, parameter in part.named_parameters():
                # New models have no agreement.
                parameter.fill_(0.8) if name == "agreement_scale" else parameter.mul_(scale)
    return model.eval()


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def times(matrix, vector):
    return [dot(row, vector) for row in matrix]


def softmax(logits):
    largest = max(logits)
    weights = [math.exp(x - largest) for x in logits]
    return [w / sum(weights) for w in weights]


def weighted(weights, vectors):
    return [sum(w * x[d] for w, x in zip(weights, vectors, strict=True)) for d in range(D)]


def unit(vector):
    length = math.sqrt(dot(vector, vector))
    return [x / length for x in vector]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def mlp(weights, name, x):
    """Linear, relu, linear."""
    first = zip(times(weights[f"{name}.0.weight"], x), weights[f"{name}.0.bias"], strict=True)
    hidden = [max(0.0, a + b) for a, b in first]
    last = zip(times(weights[f"{name}.2.weight"], hidden), weights[f"{name}.2.bias"], strict=True)
    return [a + b for a, b in last]


def messages_by_loops(config, weights, me, you, own, other):
    """Messages to each position of `own`, and what each is made of."""
    if config.messages == "mean":
        return [[sum(x[d] for x in other) / len(other) for d in range(D)] for _ in own], None
    asking = "query" if config.messages == "refined" else "key"
    queries = [times(weights[f"{me}.{asking}.weight"], x) for x in own]
    keys = [times(weights[f"{you}.key.weight"], x) for x in other]
    attention = [softmax([dot(q, k) / math.sqrt(K) for k in keys]) for q in queries]
    messages = [weighted(row, other) for row in attention]
    if config.messages == "cross_attention":
        return messages, attention
    queries = [times(weights[f"{me}.message_query.weight"], m) for m in messages]
    keys = [times(weights[f"{me}.message_key.weight"], m) for m in messages]
    second = [softmax([dot(q, k) / math.sqrt(K) for k in keys]) for q in queries]
    refined = [unit(weighted(row, messages)) for row in second]
    both = [
        [sum(row[s] * attention[s][n] for s in range(len(own))) for n in range(len(other))]
        for row in second
    ]
    return refined, both


def gate_logit_by_loops(config, weights, me, x, m):
    """Of the scalar gate of one position."""
    logit = dot(x, m)
    if config.normalise_features and config.messages != "refined":
        logit = weights[f"{me}.gate_scale"] * logit / D + weights[f"{me}.gate_bias"]
    return logit


def fused_by_loops(config, weights, me, x, m):
    """One position: its features after fusion, and its gate as it is reported."""
    if config.gate == "none":
        gate = [1.0] * D
    elif config.gate == "elementwise":
        gate = [sigmoid(a * b) for a, b in zip(x, m, strict=True)]
    else:
        gate = [sigmoid(gate_logit_by_loops(config, weights, me, x, m))] * D
    if config.fusion == "add":
        combined = [g * (a + b) for g, a, b in zip(gate, x, m, strict=True)]
    elif config.fusion == "product":
        combined = [g * a * b for g, a, b in zip(gate, x, m, strict=True)]
    else:
        combined = [g * a for g, a in zip(gate, x, strict=True)]
        combined += [g * b for g, b in zip(gate, m, strict=True)]
    fused = [max(0.0, y) for y in times(weights[f"{me}.fusion.weight"], combined)]
    if config.residual:
        fused = [a + b for a, b in zip(fused, x, strict=True)]
    return fused, None if config.gate == "none" else sum(gate) / D


def aggregated_by_loops(config, weights, me, positions):
    """One vector, and what each position weighs in it."""
    if config.aggregation == "mean":
        shares = [1 / len(positions)] * len(positions)
        return weighted(shares, positions), shares
    if config.aggregation == "attention":
        query = weights[f"{me}.aggregation"]
        shares = softmax([dot(query, x) / math.sqrt(D) for x in positions])
        return weighted(shares, positions), shares
    logits = [mlp(weights, f"{me}.aggregation", x) for x in positions]  # 4 heads a position
    shares = [softmax([row[h] for row in logits]) for h in range(4)]
    heads = [weighted(row, positions) for row in shares]
    vector = unit([sum(head[d] for head in heads) / 4 for d in range(D)])
    return vector, [sum(column) / 4 for column in zip(*shares, strict=True)]


def agreement_by_loops(config, weights, me, own, messages, shares):
    """How far the positions agree with their messages, as the score counts it."""
    if config.score != "mlp_agreement":
        return 0.0
    pairs = zip(shares, own, messages, strict=True)
    total = sum(s * gate_logit_by_loops(config, weights, me, x, m) for s, x, m in pairs)
    return weights[f"{me}.agreement_scale"] * total


def side_by_loops(config, weights, me, you, own, other):
    """The aggregate of one side, its attention, its gates and its agreement."""
    if config.messages == "none":
        return aggregated_by_loops(config, weights, me, own)[0], None, None, 0.0
    messages, attention = messages_by_loops(config, weights, me, you, own, other)
    if config.fusion == "none":
        return aggregated_by_loops(config, weights, me, messages)[0], attention, None, 0.0
    pairs = zip(own, messages, strict=True)
    fused = [fused_by_loops(config, weights, me, x, m) for x, m in pairs]
    gates = None if config.gate == "none" else [gate for _, gate in fused]
    aggregate, shares = aggregated_by_loops(config, weights, me, [f for f, _ in fused])
    agreement = agreement_by_loops(config, weights, me, own, messages, shares)
    return aggregate, attention, gates, agreement


def scored_by_loops(camp: Camp, v: torch.Tensor, t: torch.Tensor) -> tuple:
    """One photo v (R, D) with one caption t (N, D): the parts of PairScores as lists."""
    names = ("photo.", "caption.", "score.")
    state = camp.state_dict().items()
    weights = {name: value.tolist() for name, value in state if name.startswith(names)}
    config, v, t = camp.config, v.tolist(), t.tolist()
    v_star, region_attention, region_gates, of_regions = side_by_loops(
        config, weights, "photo", "caption", v, t
    )
    t_star, word_attention, word_gates, of_words = side_by_loops(
        config, weights, "caption", "photo", t, v
    )
    if config.score == "cosine":
        logit = dot(unit(v_star), unit(t_star))
    elif config.score == "mlp_concat":
        logit = mlp(weights, "score", v_star + t_star)[0]
    else:
        logit = mlp(weights, "score", [a + b for a, b in zip(v_star, t_star, strict=True)])[0]
        logit += of_regions + of_words
    return logit, word_attention, region_attention, word_gates, region_gates
