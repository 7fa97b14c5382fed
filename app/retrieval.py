"""Two-stage retrieval: stage 1 lists, the scorer ranks what is listed, ties to the lower index."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from app.explanation import EncodedPhoto
from app.gallery_folder import Gallery
from matching.encoded import pad_captions
from matching.engine import Engine
from matching.metrics import shortlist
from matching.text import MAX_WORDS, Caption

PHOTO_SHORTLIST = 100  # as in the measured results (docs/results.md)
CAPTION_SHORTLIST = 50  # captions are encoded when they are needed: this bounds the time


@dataclass(frozen=True)
class Match:
    """One result; ranks count from 1."""

    rank: int
    photo: int  # position in the gallery
    id: str
    path: str
    caption: str | None
    score: float
    probability: float | None  # only the scorer gives one
    stage1_score: float
    stage1_rank: int

    def to_json(self) -> dict:
        names = (
            "rank",
            "id",
            "path",
            "caption",
            "score",
            "probability",
            "stage1_score",
            "stage1_rank",
        )
        return {name: getattr(self, name) for name in names}


@dataclass
class Timing:
    """How long each part of a search took."""

    milliseconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.milliseconds[name] = 1000 * (time.perf_counter() - began)

    def __str__(self) -> str:
        return ", ".join(f"{name} {ms:.0f} ms" for name, ms in self.milliseconds.items())


@dataclass(frozen=True)
class Found:
    matches: list[Match]
    timing: Timing
    note: str | None = None  # something that the person should know


class Retriever:
    def __init__(self, engine: Engine, gallery: Gallery):
        self.engine, self.gallery = engine, gallery
        self._scorer = engine.description.scorer.title
        self._caption_sides: dict[int, np.ndarray] = {}
        self._popularity = engine.popularity.of_photos(gallery.embeddings)

    def find_photos(self, text: str, count: int, rerank: bool = True) -> Found:
        """Photos for a caption."""
        timing = Timing()
        with timing.measure("text encoder"):
            caption = self.engine.captions.read(text)
            embeddings, sides = self.engine.encode_captions([caption])
        with timing.measure("stage 1"):
            stage1 = self.engine.similarity(embeddings, self.gallery.embeddings)[0]
            listed = shortlist(stage1[None], max(PHOTO_SHORTLIST, count))[0]
        order, scores = np.arange(len(listed)), None
        if rerank:
            with timing.measure(self._scorer):
                captions, mask = pad_captions(sides)
                logits = self.engine.score_grid(self.gallery.sides(listed), captions, mask)[0]
                popularity = self.engine.popularity.of_captions(embeddings)
                similarities = stage1[listed] - self._popularity[listed] - popularity
                scores = self.engine.ranking.scores(logits[:, 0], similarities)
                order = np.argsort(-scores, kind="stable")
        rows = [
            (listed[place], stage1[listed[place]], place, None if scores is None else scores[place])
            for place in order[:count].tolist()
        ]
        matches = [
            self._match(rank, int(photo), self._first_caption(int(photo)), similarity, place, score)
            for rank, (photo, similarity, place, score) in enumerate(rows, 1)
        ]
        return Found(matches, timing, cut_note(caption))

    def gallery_photo(self, photo: int) -> EncodedPhoto:
        """A photo of the gallery as if it had just been encoded."""
        return EncodedPhoto(
            self.gallery.embeddings[photo], self.gallery.sides(np.array([photo]))[0]
        )

    def find_captions(self, query: EncodedPhoto, count: int, rerank: bool = True) -> Found:
        """Captions of the gallery for a photo."""
        timing = Timing()
        if not self.gallery.captions:
            return Found([], timing, "This gallery has no captions.")
        with timing.measure("stage 1"):
            stage1 = self._similarity(query, self.gallery.caption_embeddings)
            listed = shortlist(stage1[None], max(CAPTION_SHORTLIST, count))[0]
        order, scores = np.arange(len(listed)), None
        if rerank:
            with timing.measure(self._scorer):
                captions, mask = pad_captions(self._sides_of_captions(listed))
                logits = self.engine.score_grid(query.side[None], captions, mask)[0]
                popularity = self.engine.popularity.of_photos(query.embedding[None])
                popularity = popularity + self.engine.popularity.of_captions(
                    self.gallery.caption_embeddings[listed]
                )
                scores = self.engine.ranking.scores(logits[0], stage1[listed] - popularity)
                order = np.argsort(-scores, kind="stable")
        matches = []
        for rank, place in enumerate(order[:count].tolist(), 1):
            caption = int(listed[place])
            score = None if scores is None else scores[place]
            matches.append(
                self._match(
                    rank,
                    self.gallery.photo_of_caption[caption],
                    self.gallery.captions[caption],
                    stage1[caption],
                    place,
                    score,
                ),
            )
        return Found(matches, timing)

    def find_similar(self, query: EncodedPhoto, count: int) -> Found:
        """Photos like a photo: stage 1 alone, as scorers compare photos with captions only."""
        timing = Timing()
        with timing.measure("stage 1"):
            stage1 = self._similarity(query, self.gallery.embeddings)
            listed = shortlist(stage1[None], count)[0].tolist()
        matches = [
            self._match(rank, photo, self._first_caption(photo), stage1[photo], rank - 1, None)
            for rank, photo in enumerate(listed, 1)
        ]
        return Found(matches, timing)

    def _similarity(self, query: EncodedPhoto, embeddings: np.ndarray) -> np.ndarray:
        return self.engine.similarity(query.embedding[None], embeddings)[0]

    def _sides_of_captions(self, captions: np.ndarray) -> list[np.ndarray]:
        """Sides of gallery captions, encoded once and kept."""
        missing = [c for c in captions.tolist() if c not in self._caption_sides]
        read = {c: self.engine.captions.read(self.gallery.captions[c]) for c in missing}
        missing.sort(key=lambda c: len(read[c].piece_ids))
        for start in range(0, len(missing), 16):
            chunk = missing[start : start + 16]
            _, sides = self.engine.encode_captions([read[c] for c in chunk])
            self._caption_sides.update(zip(chunk, sides, strict=True))
        return [self._caption_sides[c] for c in captions.tolist()]

    def _first_caption(self, photo: int) -> str | None:
        captions = self.gallery.items[photo].captions
        return captions[0] if captions else None

    def _match(
        self,
        rank: int,
        photo: int,
        caption: str | None,
        similarity: float,
        place: int,
        score: float | None,
    ) -> Match:
        item = self.gallery.items[photo]
        probability = None
        if score is not None:
            probability = float(self.engine.ranking.probabilities(np.array([score]))[0])
        return Match(
            rank,
            photo,
            item.id,
            str(self.gallery.photo_path(photo)),
            caption,
            round(float(similarity if score is None else score), 6),
            None if probability is None else round(probability, 6),
            round(float(similarity), 6),
            place + 1,
        )


def cut_note(caption: Caption) -> str | None:
    """What to say of a caption that was too long."""
    if not caption.cut:
        return None
    return (
        f"The caption has {caption.words_found:,} words; the model reads the first "
        f"{len(caption.words)} (its limit is {MAX_WORDS} words)."
    )
