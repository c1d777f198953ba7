"""Data comes out as it was written, damage is named, and training never sees what is held out."""

import gzip

import numpy as np
import pytest
import torch

from laconic.lab import datasets

PARTS = {"train": 12, "t10k": 5}
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
installed = pytest.mark.skipif(
    not datasets.DEBIAN_FASHION.exists(), reason="Debian's package dataset-fashion-mnist is not installed"
)


def idx(array):
    """The idx file that holds `array`."""
    header = [0x0800 | array.ndim, *array.shape]
    return b"".join(number.to_bytes(4, "big") for number in header) + array.astype(np.uint8).tobytes()


def drawn(images):
    rng = np.random.default_rng(images)
    return rng.integers(0, 256, (images, 28, 28)), rng.integers(0, 10, images)


@pytest.fixture(params=["plain", "gzipped"])
def directory(request, tmp_path):
    """A directory of four small files in Fashion-MNIST's format."""
    for part, images in PARTS.items():
        pixels, labels = drawn(images)
        for name, array in ((f"{part}-images-idx3-ubyte", pixels), (f"{part}-labels-idx1-ubyte", labels)):
            write(tmp_path / name, idx(array), zipped=request.param == "gzipped")
    return tmp_path


def write(path, content, *, zipped):
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def damage(directory, name, change):
    """The file now has the content that `change` makes of it, plain."""
    path, zipped = directory / name, directory / f"{name}.gz"
    content = gzip.decompress(zipped.read_bytes()) if zipped.exists() else path.read_bytes()
    zipped.unlink(missing_ok=True)
    path.write_bytes(change(content))


def test_fashion_reads_what_was_written_plain_or_gzipped(directory):
    for samples, images in zip(datasets.fashion(directory), PARTS.values(), strict=True):
        pixels, labels = drawn(images)
        assert np.array_equal(samples.pixels.squeeze(1), pixels)
        assert np.array_equal(samples.labels, labels)


def test_fashion_is_found_by_the_environment_variable(directory, monkeypatch):
    monkeypatch.setenv("LACONIC_DATA", str(directory))
    assert len(datasets.fashion(None)[0]) == PARTS["train"]


def test_a_named_directory_goes_before_the_environment_variable(directory, monkeypatch):
    monkeypatch.setenv("LACONIC_DATA", "/nowhere")
    assert len(datasets.fashion(directory)[0]) == PARTS["train"]


@installed
def test_fashion_is_found_where_debian_puts_it(monkeypatch):
    monkeypatch.delenv("LACONIC_DATA", raising=False)
    train, held_out = datasets.fashion(None)
    assert (len(train), len(held_out)) == (60000, 10000)
    assert train.labels.bincount().tolist() == [6000] * 10


def test_missing_files_say_where_and_how_to_get_them(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"{tmp_path} has no {IMAGES}.*apt-get.*--data DIR or LACONIC_DATA"
    ):
        datasets.fashion(tmp_path)


DAMAGES = {
    "an empty file": (IMAGES, lambda content: b"", "magic number 0, not 2051"),
    "a labels file for images": (
        IMAGES,
        lambda content: b"\0\0\x08\x01" + content[4:],
        "magic number 2049, not 2051",
    ),
    "a wrong type": (LABELS, lambda content: b"\0\0\x0d\x01" + content[4:], "magic number 3329, not 2049"),
    "a cut header": (IMAGES, lambda content: content[:9], "has 9 bytes and its header says"),
    "a cut end": (IMAGES, lambda content: content[:-1], "has 9423 bytes and its header says 9424"),
    "bytes too many": (LABELS, lambda content: content + b"\0", "has 21 bytes and its header says 20"),
    "labels above 9": (
        LABELS,
        lambda content: content[:-1] + b"\x0a",
        "not 28×28 pixels for each label from 0 to 9",
    ),
    "labels too few": (LABELS, lambda content: idx(np.zeros(11)), r"shape \(12, 28, 28\) for 11 labels"),
    "small images": (IMAGES, lambda content: idx(np.zeros((12, 8, 8))), r"shape \(12, 8, 8\) for 12 labels"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_file_is_refused_with_what_is_wrong(directory, case):
    name, change, message = DAMAGES[case]
    damage(directory, name, change)
    with pytest.raises(ValueError, match=f"{directory}.*{message}.*; get the files? again"):
        datasets.fashion(directory)


TORN = {
    "a cut end": lambda zipped: zipped[:-30],
    "no gzip header": lambda zipped: b"GIF89a",
    "a spoiled middle": lambda zipped: zipped[:10] + b"\xff" * 50,
}


@pytest.mark.parametrize("case", TORN)
def test_a_damaged_gzip_file_is_refused(tmp_path, case):
    (tmp_path / f"{IMAGES}.gz").write_bytes(TORN[case](gzip.compress(idx(drawn(12)[0]))))
    with pytest.raises(ValueError, match=rf"{IMAGES}.gz is damaged \(.*\); get the file again"):
        datasets.fashion(tmp_path)


@pytest.mark.parametrize(
    "load", [datasets.digits, pytest.param(lambda: datasets.fashion(None), marks=installed)]
)
def test_images_are_normalized_to_mean_0_and_deviation_1(load):
    inputs = load()[0][torch.arange(1400)].inputs
    # 1400 fashion images differ from all 60000 by a percent or so
    assert abs(inputs.mean()) < 0.03
    assert abs(inputs.std() - 1) < 0.03


def test_digits_hold_out_a_fifth_that_training_does_not_have():
    train, held_out = datasets.digits()
    everything = torch.cat([train.pixels, held_out.pixels])
    assert (len(train), len(held_out)) == (1437, 360)
    assert len(everything.unique(dim=0)) == 1797  # scikit-learn's digits are all different
    assert held_out.labels.bincount().min() > 20


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"task digits needs scikit-learn; install it with laconic\[report\]"
    ):
        datasets.digits()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A standard library of 20 modules, each 500 bytes of a letter of its own, and a generated one."""
    for number in range(20):
        (tmp_path / f"{chr(ord('a') + number)}.py").write_bytes(bytes([97 + number]) * 500)
    (tmp_path / "_sysconfigdata_x.py").write_text("?" * 500)
    monkeypatch.setattr(datasets.sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def bytes_of(samples):
    return set(bytes(samples.text.unique().tolist()).decode())


def test_text_holds_out_every_tenth_file(library):
    train, held_out = datasets.source_text(None, context=16)
    assert bytes_of(held_out) == {"j", "t"}
    assert bytes_of(train) == set("abcdefghiklmnopqrs")


def test_text_can_be_any_directory_of_source(library, tmp_path_factory, monkeypatch):
    expected = datasets.source_text(None, context=16)
    monkeypatch.setattr(datasets.sysconfig, "get_path", lambda name: str(tmp_path_factory.mktemp("empty")))
    for wanted, found in zip(expected, datasets.source_text(library, context=16), strict=True):
        assert torch.equal(wanted.text, found.text)
        assert torch.equal(wanted.starts, found.starts)


def test_targets_are_the_bytes_that_follow(library):
    for samples in datasets.source_text(None, context=16):
        inputs, targets = samples[torch.arange(len(samples))]
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert torch.equal(targets[:, -1], samples.text[samples.starts + 16].long())


def test_training_windows_cover_the_text_without_overlap(library):
    train, _ = datasets.source_text(None, context=16)
    inputs = train[torch.arange(len(train))].inputs.flatten()
    assert torch.equal(inputs, train.text[: len(inputs)].long())
    assert len(train.text) - len(inputs) <= 16


def test_held_out_windows_spread_over_all_held_out_text(library):
    _, held_out = datasets.source_text(None, context=16)
    assert len(held_out) == 128
    assert held_out.starts[0] == 0
    assert held_out.starts[-1] >= len(held_out.text) - 2 * 16


def test_a_library_without_source_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=f"{tmp_path} has 0 modules as source; use a Python that keeps"
    ):
        datasets.source_text(None, context=16)
