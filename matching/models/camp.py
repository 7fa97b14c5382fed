"""CAMP (Wang et al., ICCV 2019): cross-modal adaptive message passing, all forms of it.

For regions v_i and words t_j (sections 3.1 to 3.4 of the paper), in the default form `fast`:

    message    m_i = sum_j softmax_j(Kv v_i . Kt t_j / sqrt(k)) t_j
    gate       g_i = sigmoid(a v_i . m_i + b)
    fusion     f_i = relu(F g_i (v_i + m_i)) + v_i
    aggregate  v*  = sum_i softmax_i(q . f_i / sqrt(d)) f_i
    score      MLP(v* + t*), the logit; with `mlp_agreement` also
               + c sum_i softmax_i(q . f_i / sqrt(d)) (a v_i . m_i + b)

and the same for words with the roles exchanged. Each line is a setting of CampConfig: the forms of
the paper (elementwise gate) and of the authors' code (refined messages, [v; m], aggregation by an
MLP, MLP([v*; t*])) and the ablations of the paper's Table 3 are settings, not modules.

relu is positively homogeneous and a gate of one number is positive, so
relu(F g (v + m)) = g relu(F v + sum_j a_ij F t_j): every d x d product is made once per photo and
once per caption, not once per pair. `forward` scores that way wherever it is exact, `score_plainly`
by the equations as they stand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from matching.config import CampConfig
from matching.models.camp_messages import (
    Side,
    Weights,
    by_region,
    by_word,
    every_with_every,
    factors,
    joined_side,
    message_weights,
    mix,
    side_widths,
    split_side,
)
from matching.models.camp_passing import Passed, Passing, check_settings
from matching.models.camp_plainly import score_plainly
from matching.models.projection import l2_normalised
from matching.models.scores import PairScores
from matching.models.system import System


class Camp(System):
    """A pair scorer; without messages and with the cosine as score (base model) an embedder, too.

    An elementwise gate is reported by its mean over the dimensions. The attention of refined
    messages is the product of both attentions: what a message is made of in the end.
    """

    extra_positions = 0

    def __init__(self, config: CampConfig) -> None:
        check_settings(config)
        super().__init__(config)
        dimension = config.dimension
        self.dimension, self.key_dimension = dimension, config.key_dimension
        self.side_width = sum(side_widths(config).values())
        self.photo = Passing(config)
        self.caption = Passing(config)
        if config.score == "cosine":
            # Inverse temperature of a contrastive loss; the logit is the cosine itself.
            self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))
        else:
            inputs = 2 * dimension if config.score == "mlp_concat" else dimension
            self.score = nn.Sequential(
                nn.Linear(inputs, dimension),
                nn.ReLU(),
                nn.Linear(dimension, 1),
            )
        if config.messages == "none" and config.score == "cosine":
            self.embedding_width = dimension
        if config.messages == "refined":
            self._start_as_the_release()

    @torch.no_grad()
    def _start_as_the_release(self) -> None:
        """Uniform within sqrt(6 / 2d) for keys, fusion and score, also where the fan-in is 2d.

        The other layers keep torch's default, as in the authors' code.
        """
        bound = math.sqrt(3 / self.dimension)
        layers = [self.photo.key, self.caption.key]
        layers += [p.fusion for p in (self.photo, self.caption) if hasattr(p, "fusion")]
        layers += [] if self.config.score == "cosine" else [self.score[0], self.score[2]]
        for layer in layers:
            layer.weight.uniform_(-bound, bound)
            if layer.bias is not None:
                layer.bias.zero_()

    def _scaled(self, features: Tensor) -> Tensor:
        if not self.config.normalise_features:
            return features
        return l2_normalised(features) * math.sqrt(self.dimension)

    def region_features(self, regions: Tensor) -> Tensor:
        """(..., R, C) -> v (..., R, D), each of length sqrt(D) if features are normalised."""
        return self._scaled(self.regions(regions))

    def word_features(self, *captions: Tensor) -> tuple[Tensor, Tensor]:
        """Captions as the word encoder takes them -> t (B, N, D), word_mask (B, N) bool."""
        words, mask = self.encode_words(*captions)
        return self._scaled(words), mask

    def photo_side_of(self, v: Tensor) -> Tensor:
        """Region features (..., R, D) -> (..., R, S)."""
        return joined_side(self.config, v, self.photo, self.caption)

    def caption_side_of(self, t: Tensor) -> Tensor:
        """Word features (..., N, D) -> (..., N, S)."""
        return joined_side(self.config, t, self.caption, self.photo)

    def photo_side(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """(B, R, C) -> (B, R, S); a region does not depend on the others, nor on their mask."""
        return self.photo_side_of(self.region_features(regions))

    def caption_side(self, *captions: Tensor) -> tuple[Tensor, Tensor]:
        """Captions as the word encoder takes them -> (B, N, S), word_mask (B, N) bool."""
        t, mask = self.word_features(*captions)
        return self.caption_side_of(t), mask

    def forward(
        self,
        photos: Tensor,
        captions: Tensor,
        mask: Tensor,
        region_mask: Tensor | None = None,
    ) -> PairScores:
        """Scores every photo with every caption: (..., P, R, S), (..., C, N, S) -> (..., P, C).

        mask (..., C, N), region_mask (..., P, R) bool. Leading axes are groups that are scored
        apart.
        """
        photo, caption = split_side(self.config, photos), split_side(self.config, captions)
        if self.config.messages == "none":
            return PairScores(self._logit_apart(photo, caption, mask, region_mask))
        # v . t of every region with every word: (..., P, R, C, N)
        agreement = every_with_every(photo.features, caption.features)
        to_regions, to_words = message_weights(
            self.config, photo, caption, agreement, mask, region_mask
        )
        regions = self._pass(
            self.photo, photo, caption, to_regions, by_region(agreement), region_mask
        ).with_other_first()  # (..., P, C, ...)
        words = self._pass(self.caption, caption, photo, to_words, by_word(agreement), mask)
        attention = to_regions.attention
        return PairScores(
            self.logit_of(regions, words),
            to_words.attention,
            None if attention is None else attention.transpose(-3, -4),
            words.gates,
            regions.gates,
        )

    def _pass(
        self,
        passing: Passing,
        own: Side,
        other: Side,
        weights: Weights,
        agreement: Tensor,
        mask: Tensor | None,
    ) -> Passed:
        """Messages to the positions S of A.

        own: of A, other: of B; agreement (..., B, A, S, T), mask (..., A, S).
        """
        config = self.config
        if config.fusion == "none":
            messages = mix(weights.mixing, other.features)
            return Passed(passing.aggregate(messages, None, None, mask)[0])
        residual = own.features if config.residual else None
        visible = None if mask is None else mask[..., None, :, :]
        gates = gate_logits = None
        if config.gate == "scalar":
            gate_logits = passing.gate_logits((weights.mixing * agreement).sum(-1))
            gates = gate_logits.sigmoid()
            gates = gates if visible is None else gates * visible
        if factors(config):
            messages = mix(weights.mixing, other.fused_message)
            fused = torch.relu(own.fused[..., None, :, :, :] + messages)
        else:
            features = own.features[..., None, :, :, :]
            messages = mix(weights.mixing, other.features)
            if config.gate == "elementwise":
                elements = (features * messages).sigmoid()  # (..., B, A, S, D)
                fused = passing.fuse(features, messages, elements)
                gates = elements.mean(-1) if visible is None else elements.mean(-1) * visible
                return Passed(passing.aggregate(fused, None, residual, mask)[0], gates)
            fused = passing.fuse(features, messages, None)  # a scalar gate leaves relu and F
        aggregate, shares = passing.aggregate(fused, gates, residual, mask)
        agreed = config.score == "mlp_agreement"
        return Passed(aggregate, gates, (shares * gate_logits).sum(-1) if agreed else None)

    def logit_of(self, photo: Passed, caption: Passed) -> Tensor:
        """Of pairs: v* and t* (..., D), agreements (...) if the score has them -> (...)."""
        v, t = photo.aggregate, caption.aggregate
        if self.config.score == "cosine":
            return (l2_normalised(v) * l2_normalised(t)).sum(-1)
        joined = torch.cat([v, t], dim=-1) if self.config.score == "mlp_concat" else v + t
        logit = self.score(joined).squeeze(-1)
        if self.config.score != "mlp_agreement":
            return logit
        parts = ((self.photo, photo), (self.caption, caption))
        return logit + sum(p.agreement_scale * passed.agreement for p, passed in parts)

    @staticmethod
    def _aggregate_alone(passing: Passing, features: Tensor, mask: Tensor | None) -> Tensor:
        """Without messages: (..., A, S, D) -> (..., A, D)."""
        alone, _ = passing.aggregate(features[..., None, :, :, :], None, None, mask)
        return alone.squeeze(-3)

    def _logit_apart(
        self,
        photo: Side,
        caption: Side,
        mask: Tensor,
        region_mask: Tensor | None,
    ) -> Tensor:
        v = self._aggregate_alone(self.photo, photo.features, region_mask)  # (..., P, D)
        t = self._aggregate_alone(self.caption, caption.features, mask)  # (..., C, D)
        if self.config.score == "cosine":
            return self.similarity(l2_normalised(v), l2_normalised(t))
        pairs = torch.broadcast_tensors(v[..., :, None, :], t[..., None, :, :])
        return self.logit_of(*map(Passed, pairs))

    def embed_photos(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """regions (B, R, C) -> (B, D), unit length."""
        self._expect_base_model()
        v = self.region_features(regions)
        return l2_normalised(self._aggregate_alone(self.photo, v, region_mask))

    def embed_captions(self, *captions: Tensor) -> Tensor:
        """Captions as the word encoder takes them -> (B, D), unit length."""
        self._expect_base_model()
        t, mask = self.word_features(*captions)
        return l2_normalised(self._aggregate_alone(self.caption, t, mask))

    @staticmethod
    def similarity(photos: Tensor, captions: Tensor) -> Tensor:
        """Embeddings (..., P, D), (..., C, D) -> (..., P, C): cosines."""
        return photos @ captions.transpose(-1, -2)

    def _expect_base_model(self) -> None:
        messages, score = self.config.messages, self.config.score
        if (messages, score) != ("none", "cosine"):
            raise ValueError(
                f"CAMP with messages {messages!r} and score {score!r} has no embeddings: only the "
                "base model (messages 'none', score 'cosine') can be stage 1",
            )

    def score_plainly(self, v: Tensor, t: Tensor) -> PairScores:
        """The equations as they stand: photos v (P, R, D) with one caption t (N, D) -> (P, ...)."""
        return score_plainly(self, v, t)
