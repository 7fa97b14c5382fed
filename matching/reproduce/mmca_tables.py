"""MMCA, tables 4 to 6: the weight of the cross-attention and the width of the model."""

from __future__ import annotations

from typing import Any

from matching.reproduce.experiment import Setting, tested_variation
from matching.reproduce.report import Plot, Report, recall_cells, sampling_error

_ALPHAS = (0.1, 0.2, 0.4, 0.8)
_DIMENSIONS = (64, 128, 256)
_PHOTOS = 100  # of `test`: every photo with every caption
_MODEL = {"dimension": 128, "feed_forward": 128, "filters": 128}
_TRAINING = {"epochs": 1, "groups": 4, "pool_size": 512, "validation_shortlist": 10}


def run_alpha(setting: Setting) -> Report:
    results = {a: _row(setting, f"mmca-alpha-{a}", {"alpha": a}) for a in _ALPHAS}
    return _report(
        setting,
        "mmca-alpha",
        "MMCA: weight of the cross-attention",
        "alpha",
        results,
        "the paper uses 0.2",
        0.2,
    )


def run_dimension(setting: Setting) -> Report:
    results = {
        d: _row(setting, f"mmca-dim-{d}", {"dimension": d, "feed_forward": d, "filters": d})
        for d in _DIMENSIONS
    }
    return _report(
        setting,
        "mmca-dim",
        "MMCA: width of the model",
        "dimension",
        results,
        "the paper uses 256 and tries up to 512",
        256,
    )


def _row(setting: Setting, name: str, model: dict[str, Any]) -> dict[str, Any]:
    return tested_variation(setting, name, "mmca", {**_MODEL, **model}, _TRAINING, _PHOTOS)


def _report(
    setting: Setting,
    name: str,
    title: str,
    what: str,
    results: dict[float, dict[str, Any]],
    claim: str,
    paper: float,
) -> Report:
    best = max(results, key=lambda value: results[value]["rsum"])
    xs = [float(x) for x in results]
    photos = setting.photos or _PHOTOS
    error = sampling_error(results[best], photos)
    rsums = [result["rsum"] for result in results.values()]
    agrees = "it agrees" if best == paper else "it does not agree"
    if max(rsums) - min(rsums) < 2 * error:
        agrees += f", but the rows differ by less than twice the standard error ({error:.1f} rsum)"
    return Report(
        name,
        title,
        f"Flickr8k, 6,000 training photos, our features, {_TRAINING['epochs']} epoch each from the "
        f"encoders of stage 1; every pair of the first {photos} photos of `test`. Small on "
        "purpose: one seed, one epoch.",
        [what, "i2t", "t2i", "rsum"],
        [[f"{value:g}", *recall_cells(result)] for value, result in results.items()],
        f"Best here: {best:g}; {claim}: {agrees}.",
        f"python -m matching.reproduce {name} --features cache/flickr8k",
        ["The paper's numbers of this table were not at hand, only the value that it uses."],
        Plot(what, "rsum", {"here": (xs, rsums)}),
        {f"{value:g}": result for value, result in results.items()},
    )
