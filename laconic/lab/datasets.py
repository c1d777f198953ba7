"""The samples that tasks train on, all found on the machine: nothing is downloaded.

* digits: scikit-learn's own 8×8 images.
* Fashion-MNIST: four idx files of 28×28 images, plain or gzipped.
* text: the source of the Python standard library's top-level modules. It differs between Python versions.

Each is a pair, training samples and held-out samples. Pixels and text stay bytes until a batch is drawn.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import os
import sysconfig
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
_UNSIGNED_BYTES = 0x08  # the idx type code of the only type that MNIST-like files have
_HELD_OUT_SEED = 2024
_HELD_OUT_DIGITS = 360
_HELD_OUT_WINDOWS = 128


class Batch(NamedTuple):
    """What the model sees and what it should answer."""

    inputs: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        return Batch(self.inputs.to(device), self.targets.to(device))


class Samples(Protocol):
    """Numbered samples, drawn many at a time."""

    @property
    def labels(self) -> Tensor | None:
        """Each sample's class, or None where samples have none."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Batch: ...

    def to(self, device: torch.device) -> Samples:
        """The same samples on `device`."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images of bytes with a class each; batches are floats of mean 0 and deviation 1."""

    pixels: Tensor  # uint8 [samples, …]
    labels: Tensor  # int64 [samples]
    mean: float
    deviation: float

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Batch:
        return Batch((self.pixels[index].float() - self.mean) / self.deviation, self.labels[index])

    def to(self, device: torch.device) -> Images:
        """The same images on `device`."""
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Windows:
    """Stretches of `context` bytes of a text, each with the bytes that follow."""

    text: Tensor  # uint8 [bytes]
    starts: Tensor  # int64 [samples]
    context: int
    labels: None = None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Tensor) -> Batch:
        places = torch.arange(self.context + 1, device=self.text.device)
        rows = self.text[self.starts[index, None] + places].long()
        return Batch(rows[:, :-1], rows[:, 1:])

    def to(self, device: torch.device) -> Windows:
        """The same text on `device`."""
        return replace(self, text=self.text.to(device), starts=self.starts.to(device))


def digits() -> tuple[Images, Images]:
    """1437 training images and 360 held-out ones of 64 pixels, 0 to 16."""
    pixels, labels = np.split(_digits_table(), [-1], axis=1)
    order = np.random.default_rng(_HELD_OUT_SEED).permutation(len(labels))
    images = Images(
        torch.from_numpy(pixels).byte(), torch.from_numpy(labels[:, 0]).long(), mean=4.88, deviation=6.02
    )
    return _pick(images, order[_HELD_OUT_DIGITS:]), _pick(images, order[:_HELD_OUT_DIGITS])


def _digits_table() -> NDArray[np.float64]:
    """A row an image, its label last: scikit-learn's file, without the second that its import takes."""
    library = importlib.util.find_spec("sklearn")
    if library is None or not library.submodule_search_locations:
        raise ModuleNotFoundError("task digits needs scikit-learn; install it with laconic[report]")
    path = Path(library.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    return np.loadtxt(path, delimiter=",")


def fashion(data: Path | None) -> tuple[Images, Images]:
    """60000 training and 10000 held-out images, from `data`, else LACONIC_DATA, else Debian's package."""
    directory = data or Path(os.environ.get("LACONIC_DATA") or DEBIAN_FASHION)
    return _fashion_part(directory, "train"), _fashion_part(directory, "t10k")


def source_text(data: Path | None, context: int) -> tuple[Windows, Windows]:
    """All windows of nine files in ten of `data`, else of Python's own, and 128 spread over every tenth file."""
    files = _source_files(data or Path(sysconfig.get_path("stdlib")))
    training = [file for number, file in enumerate(files) if number % 10 != 9]
    held_out = _windows(files[9::10], context)
    spread = torch.linspace(0, len(held_out) - 1, _HELD_OUT_WINDOWS).long()
    return _windows(training, context), Windows(held_out.text, held_out.starts[spread], context)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes that an idx file holds, in the shape that its header gives."""
    content = _plain_or_gzipped(path)
    header = 4 + 4 * dimensions
    magic, expected = int.from_bytes(content[:4], "big"), _UNSIGNED_BYTES << 8 | dimensions
    if magic != expected:
        raise ValueError(f"{path} starts with magic number {magic}, not {expected}; get the file again")
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    length = header + math.prod(shape)
    if len(content) != length:
        raise ValueError(f"{path} has {len(content)} bytes and its header says {length}; get the file again")
    return torch.from_numpy(np.frombuffer(content, np.uint8)[header:].reshape(shape).copy())


def _pick(images: Images, index: NDArray[np.int64]) -> Images:
    """The images that `index` numbers, in its order."""
    chosen = torch.from_numpy(index)
    return replace(images, pixels=images.pixels[chosen], labels=images.labels[chosen])


def _fashion_part(directory: Path, part: str) -> Images:
    """The images and labels of one of the two parts, train or t10k."""
    pixels = read_idx(directory / f"{part}-images-idx3-ubyte", dimensions=3)
    labels = read_idx(directory / f"{part}-labels-idx1-ubyte", dimensions=1).long()
    if pixels.shape != (len(labels), 28, 28) or (labels > 9).any():
        raise ValueError(
            f"{directory} has {part} images of shape {tuple(pixels.shape)} for {len(labels)} labels, "
            "not 28×28 pixels for each label from 0 to 9; get the files again"
        )
    return Images(pixels[:, None], labels, mean=72.9, deviation=90.0)


def _plain_or_gzipped(path: Path) -> bytes:
    """The content of `path`, or of its gzipped form beside it."""
    if path.exists():
        return path.read_bytes()
    zipped = path.with_name(path.name + ".gz")
    try:
        return gzip.decompress(zipped.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}, plain or .gz; get Fashion-MNIST with apt-get install "
            "dataset-fashion-mnist, or name the directory of its four files with --data DIR or LACONIC_DATA"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{zipped} is damaged ({error}); get the file again") from error


def _source_files(directory: Path) -> list[bytes]:
    """The modules directly in `directory`, by name, less those that a build or a site generates."""
    generated = ("_sysconfigdata", "sitecustomize", "usercustomize")
    paths = [path for path in directory.glob("*.py") if not path.name.startswith(generated)]
    if len(paths) < 10:
        raise FileNotFoundError(
            f"{directory} has {len(paths)} modules as source; use a Python that keeps its .py files, or name a "
            "directory that has ten with --data DIR"
        )
    return [path.read_bytes() for path in sorted(paths, key=lambda path: path.name)]


def _windows(files: list[bytes], context: int) -> Windows:
    """The files' text, cut into windows that touch but do not overlap."""
    text = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    return Windows(text, torch.arange(0, len(text) - context, context), context)
