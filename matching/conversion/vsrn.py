"""VSRN (KunpengLi1994/VSRN): its files are read; its own model is not one of ours.

The repository grew out of VSE++ and can still train that: such a file is converted as VSE++.
"""

from __future__ import annotations

from matching.conversion.containers import Container, describe
from matching.conversion.keys import Converted
from matching.conversion.scan import convert_vsepp
from matching.vocabulary import Vocabulary


def convert(container: Container, vocabulary: Vocabulary | None) -> Converted:
    if describe(container) == "VSRN":
        image, text = container.part("image"), container.part("text")
        graphs = {name.split(".")[0] for name in image if name.startswith("Rs_GCN")}
        raise ValueError(
            f"{container.path} holds VSRN ({len(graphs)} graph convolutions, {len(image)} image "
            f"and {len(text)} text weights). Region graphs are no part of any system here, so it "
            "cannot be converted; camp, vse_infinity, dive, scan and vsepp files can",
        )
    return convert_vsepp(container, vocabulary)
