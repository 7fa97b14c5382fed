"""Pictures of maps: gates dim what is closed."""

import numpy as np
from PIL import Image

from app.figure import COLOURS, dim


def test_what_is_closed_is_dimmed_and_the_rest_stays():
    photo = Image.new("RGB", (64, 64), (200, 100, 40))
    cells = np.ones((8, 8))
    cells[:, 4:] = 0  # the right half is closed
    found = np.asarray(dim(photo, cells, 0.6), float)
    np.testing.assert_allclose(found[:, :24], np.broadcast_to((200, 100, 40), (64, 24, 3)))
    expected = 0.4 * np.array([200, 100, 40]) + 0.6 * COLOURS[0]
    np.testing.assert_allclose(found[:, 40:], np.broadcast_to(expected, (64, 24, 3)), atol=1.5)
