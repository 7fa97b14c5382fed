"""Reading the pickles that the field published, without letting them run anything.

A pickle names functions and classes, and reading it calls them. The readers here know a short,
fixed list of names, each bound to a harmless record of this file; any other name is refused before
it is even looked up. Torch is only imported where a checkpoint is read.
"""

from __future__ import annotations

import argparse
import io
import pickle
import re
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_SCALAR_KINDS = "biufc"  # numbers: nothing that holds objects


class VocabularyRecord:
    """The attributes of a published `Vocabulary`: word2idx, idx2word, idx."""

    word2idx: dict[str, int]


class _EasyDict:
    """An EasyDict is read as an OrderedDict: torch's safe reader fills no other kind of dict."""

    def __new__(cls, *_: Any) -> OrderedDict:
        return OrderedDict()


class _Dtype:
    """`numpy.dtype` as it is pickled: a name, then a state that tells the byte order."""

    def __init__(self, name: str, *_: Any) -> None:
        self.dtype = np.dtype(str(name))
        if self.dtype.kind not in _SCALAR_KINDS:
            raise pickle.UnpicklingError(f"a numpy scalar of type {name!r} is refused")

    def __setstate__(self, state: tuple) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


def _numpy_scalar(kind: _Dtype, data: bytes | str) -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data  # str: written by Python 2
    return np.frombuffer(raw, kind.dtype, count=1)[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """`_codecs.encode`: how protocol 2 writes bytes."""
    return text.encode("latin1" if encoding != "utf-8" else "utf-8")


def _reconstruct(kind: type, base: type, state: Any) -> Any:
    """`copyreg._reconstructor`: how protocols 0 and 1 make an object."""
    if kind not in (VocabularyRecord, argparse.Namespace) or base is not object:
        raise pickle.UnpicklingError(f"rebuilding {kind!r} on {base!r} is refused")
    return kind()


_SCALARS = {
    "numpy.core.multiarray.scalar": _numpy_scalar,
    "numpy._core.multiarray.scalar": _numpy_scalar,
    "numpy.dtype": _Dtype,
}
_RECORDS: dict[str, Callable] = {
    "argparse.Namespace": argparse.Namespace,
    "easydict.EasyDict": _EasyDict,
    # The published vocabularies were written by a script, so most name its __main__.
    **{
        f"{module}.Vocabulary": VocabularyRecord
        for module in ("__main__", "vocab", "lib.vocab", "vocabulary")
    },
    **_SCALARS,
}
_PLAIN: dict[str, Callable] = {
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": Counter,
    "_codecs.encode": _encode,
    "copy_reg._reconstructor": _reconstruct,
    "copyreg._reconstructor": _reconstruct,
    "__builtin__.object": object,
    "builtins.object": object,
    "__builtin__.set": set,
    "builtins.set": set,
}
_ALLOWED = {**_RECORDS, **_PLAIN}


class RestrictedUnpickler(pickle.Unpickler):
    """Knows the names of this file and no others."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"names {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("refers to storage outside it")


def load_pickle(path: Path) -> Any:
    """A plain pickle, of Python 2 or 3, made of dicts, lists, numbers, text and known records."""
    try:
        return RestrictedUnpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except Exception as error:  # a broken pickle raises errors of every kind
        raise _refusal(path, error) from None


def load_torch_checkpoint(path: Path) -> Any:
    """A file of torch.save, of the old form or the zip form; tensors come to the CPU.

    Torch's own reader of weights does the work: it calls the functions that rebuild tensors and
    the records of this file, nothing else.
    """
    import torch  # here alone, so that vocabularies are read without torch

    names = [(record, name) for name, record in _RECORDS.items()]
    try:
        # The reader warns of every protocol but 2 and of old storages; both are expected here.
        with warnings.catch_warnings(), torch.serialization.safe_globals(names):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, encoding="latin1")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except Exception as error:  # a broken file raises errors of every kind
        raise _refusal(path, error) from None


def _refusal(path: Path, error: Exception) -> ValueError:
    text = str(error)
    named = re.search(r"names (\S+)", text) or re.search(r"GLOBAL (\S+)", text)
    if named:
        return ValueError(
            f"{path} names {named[1]}, which is not on the list of what may be read: it was not "
            "run. Give a file of weights or a vocabulary as the authors published them",
        )
    reason = (text.splitlines() or [type(error).__name__])[0]
    return ValueError(f"{path} is damaged or not a pickle ({reason}): copy it again")
