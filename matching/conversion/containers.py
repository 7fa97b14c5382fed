"""What the authors' files hold: state dicts in a list or as one, and the options of the training.

VSE++, SCAN, VSRN, VSE-infinity and CAMP save {"model": [image, text, (scorer)], "opt": ...}; DivE
saves {"model": one dict, "args": ...}. nn.DataParallel puts `module.` before every name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from matching.restricted_pickle import load_torch_checkpoint

PARTS = ("image", "text", "scorer")  # of a list
_PREFIXES = {"img_enc.": "image", "txt_enc.": "text"}  # of one dict


@dataclass(frozen=True)
class Container:
    path: Path
    parts: dict[str, dict[str, Tensor]]  # by PARTS, names without `module.`
    options: dict[str, Any]  # what the model was trained with; empty if the file does not say
    progress: dict[str, Any]  # epoch and best score, where they are plain numbers

    def part(self, name: str) -> dict[str, Tensor]:
        if name not in self.parts:
            raise ValueError(
                f"{self.path} holds {describe(self)}; its parts are {', '.join(self.parts)}: "
                f"there is no {name} part",
            )
        return self.parts[name]

    def require(self, system: str, *forms: str) -> None:
        """Refuses a file of another system before any of its names is complained about."""
        found = describe(self)
        if found not in forms:
            raise ValueError(
                f"{self.path} holds {found}, not {' or '.join(forms)}: python -m matching.convert "
                f"{system} cannot read it",
            )

    def require_option(self, name: str, expected: Any) -> None:
        """Where the file tells how it was trained, it must be the way that we compute."""
        found = self.options.get(name, expected)
        if found != expected:
            raise ValueError(
                f"{self.path} was trained with {name} = {found!r}; only {expected!r} can be "
                "converted",
            )


def read_container(path: Path) -> Container:
    document = load_torch_checkpoint(path)
    outer = document if isinstance(document, Mapping) and "model" in document else {}
    model = outer.get("model", document)
    if isinstance(model, (list, tuple)):
        parts = dict(zip(PARTS, model, strict=False))
        fits = 2 <= len(model) <= len(PARTS)
    else:
        parts = _parts_of_one(model)
        fits = {"image", "text"} <= parts.keys()
    if not fits or not all(_is_state_dict(part) for part in parts.values()):
        raise ValueError(
            f"{path} holds no weights: a list of two or three state dicts, or one with names that "
            "begin with img_enc. and txt_enc., is expected under 'model'",
        )
    for name in parts.get("other", {}):
        raise ValueError(f"{path} has an unknown weight {name!r}, of neither photos nor captions")
    numbers = {k: outer[k] for k in ("epoch", "best_rsum", "best_score", "Eiters") if k in outer}
    return Container(
        path,
        {name: _without_module(part) for name, part in parts.items()},
        _as_dict(outer.get("opt", outer.get("args", {}))),
        {k: v for k, v in numbers.items() if isinstance(v, (int, float))},
    )


def describe(container: Container) -> str:
    """Which system's weights these are, by their names."""
    image, text = container.parts.get("image", {}), container.parts.get("text", {})
    scorer = container.parts.get("scorer", {})
    if any(name.startswith("Rs_GCN") or name.startswith("img_rnn") for name in image):
        return "VSRN"
    if any(".pie_net." in f".{name}" for name in (*image, *text)):
        return "PVSE"
    if scorer:
        return _camp_form(scorer)
    if any("agg_block." in name for name in image):
        return "DivE"
    if any("gpool." in name for name in image):
        return "VSE-infinity"
    if "fc.weight" in image and "embed.weight" in text:
        return "SCAN or VSE++"
    return "an unknown system"


def _camp_form(scorer: dict[str, Tensor]) -> str:
    """CAMP's four scorers, told apart by the layers that only some of them have."""
    fused = "fc_out.0.weight" in scorer
    separate = "weighted_img_key_fc.weight" in scorer
    if fused:
        return "CAMP gate_fusion_new" if separate else "CAMP gate_fusion"
    return "CAMP cross_attention_new" if separate else "CAMP cross_attention"


def _parts_of_one(model: Any) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {}
    if not isinstance(model, Mapping):
        return parts
    for name, tensor in model.items():
        bare = str(name).removeprefix("module.")
        prefix = next((p for p in _PREFIXES if bare.startswith(p)), None)
        part, rest = (_PREFIXES[prefix], bare.removeprefix(prefix)) if prefix else ("other", bare)
        parts.setdefault(part, {})[rest] = tensor
    return parts


def _is_state_dict(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and len(part) > 0
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in part.items())
    )


def _without_module(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("module."): tensor.detach() for name, tensor in part.items()}


def _as_dict(options: Any) -> dict[str, Any]:
    """Options as a dict, an EasyDict or a Namespace."""
    return dict(options) if isinstance(options, Mapping) else dict(vars(options))
