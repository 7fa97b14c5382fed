"""Regions lie where they say, and files that are no photos get a clear word."""

import io

import numpy as np
import pytest
from PIL import Image

from matching.image import (
    NUM_REGIONS,
    PhotoError,
    open_photo,
    photo_pixels,
    pixel_batch,
    region_boxes,
    region_windows,
)


def jpeg(size=(64, 48), **options) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(stream, "JPEG", **options)
    return stream.getvalue()


def test_a_region_averages_the_cells_of_its_box():
    shares = region_windows().reshape(NUM_REGIONS, 8, 8)
    for share, (left, top, right, bottom) in zip(shares, region_boxes(), strict=True):
        inside = np.zeros((8, 8), bool)
        inside[round(top * 8) : round(bottom * 8), round(left * 8) : round(right * 8)] = True
        np.testing.assert_allclose(share, inside / inside.sum(), atol=1e-6)
    assert region_boxes().min() == 0 and region_boxes().max() == 1


def test_a_photo_is_turned_upright():
    picture = Image.new("RGB", (40, 20), "white")
    picture.paste((255, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[274] = 6  # the camera was turned: rotate by 90 degrees
    stream = io.BytesIO()
    picture.save(stream, "JPEG", exif=exif, quality=95)
    photo = open_photo(stream.getvalue())
    assert photo.size == (20, 40)
    assert photo.getpixel((10, 5))[1] < 80 and photo.getpixel((10, 35))[1] > 200


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_every_mode_becomes_rgb_pixels(mode):
    stream = io.BytesIO()
    Image.new(mode, (30, 20)).save(stream, "TIFF")
    pixels = photo_pixels(open_photo(stream.getvalue()))
    assert pixel_batch([pixels]).shape == (1, 3, 256, 256)


def test_what_is_no_photo_is_refused(tmp_path):
    text = tmp_path / "notes.jpg"
    text.write_text("not a photo")
    whole = jpeg((600, 400))
    cases = [
        (text, "notes.jpg is not a photo"),
        (tmp_path / "missing.jpg", "missing.jpg does not exist"),
        (tmp_path, "is a folder"),
        (whole[: len(whole) // 2], "damaged"),
        (b"", "is not a photo"),
    ]
    for source, message in cases:
        with pytest.raises(PhotoError, match=message):
            open_photo(source)


@pytest.mark.parametrize("size", [(20000, 20000), (11000, 11000)])
def test_a_small_file_that_expands_is_refused(size):
    stream = io.BytesIO()
    Image.new("1", size).save(stream, "PNG")
    assert len(stream.getvalue()) < 100_000
    with pytest.raises(PhotoError, match="at most 100 million"):
        open_photo(stream.getvalue(), "bomb.png")
