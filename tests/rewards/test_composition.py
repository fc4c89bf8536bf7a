"""GenEval's grading by its definition, and the shapes detector on drawn scenes."""

import numpy as np
import pytest

from spotlightd.rewards.composition import Detection, grade, places
from spotlightd.rewards.records import parse_record
from spotlightd.rewards.scoring import Scorer
from spotlightd.rewards.shapes import CLASSES, PALETTE, draw_shape, find_shapes

CELL = 12
GRID = 4
PAPER = 235.0


def scene(shapes, rng=None, sigma=0.0):
    """Draw (kind, colour, row, column) in cells of a 48 x 48 image; sigma is grain."""
    image = np.full((GRID * CELL, GRID * CELL, 3), PAPER)
    for kind, color, row, column in shapes:
        cover = draw_shape(kind, CELL - 2)[..., None]
        top, left = row * CELL + 1, column * CELL + 1
        part = image[top : top + CELL - 2, left : left + CELL - 2]
        part[:] = (1 - cover) * part + cover * np.array(PALETTE[color])
    if rng is not None:
        image += rng.normal(0, sigma, image.shape)
    return image.round().clip(0, 255).astype(np.uint8)


def record(include, exclude=()):
    clauses = ", ".join(include)
    return parse_record(f'{{"include": [{clauses}], "exclude": [{", ".join(exclude)}]}}')


def clause(kind, count=1, color=None, position=None):
    parts = [f'"class": "{kind}", "count": {count}']
    parts += [f'"color": "{color}"'] if color else []
    parts += [f'"position": ["{position}", 0]'] if position else []
    return "{" + ", ".join(parts) + "}"


def at(kind, color="red", x=0.0, y=0.0):
    return Detection(kind, color, (x, y, x + 10, y + 10), 1.0)


TWO_CUPS = record([clause("cup", 2)], [clause("cup", 3)])
RED_CUP = record([clause("cup", 1, "red")])
RIGHT = record([clause("cup"), clause("dog", 1, None, "right of")])


@pytest.mark.parametrize(
    ("asked", "found", "graded", "strict"),
    [
        (TWO_CUPS, [at("cup"), at("cup")], 1.0, True),
        (TWO_CUPS, [at("cup")], 0.5, False),
        (TWO_CUPS, [at("cup")] * 3, 0.5, False),
        (TWO_CUPS, [at("cup")] * 9, 0.0, False),
        (TWO_CUPS, [], 0.0, False),
        (RED_CUP, [at("cup", "red")], 1.0, True),
        (RED_CUP, [at("cup", "blue")], 0.5, False),
        (RED_CUP, [at("cup", "red"), at("cup", "red")], 0.0, False),
        (RIGHT, [at("cup"), at("dog", x=30)], 1.0, True),
        (RIGHT, [at("cup", x=30), at("dog")], 2 / 3, False),
        (RIGHT, [at("cup"), at("dog", x=30), at("dog", x=60)], 1 / 3, False),
    ],
)
def test_grading(asked, found, graded, strict):
    value, exact = grade(asked, found)
    assert (value, exact) == (pytest.approx(graded), strict)


def test_places_need_a_gap_and_may_be_diagonal():
    here = at("a")
    assert places(at("b", x=30), here) == {"right of"}
    assert places(at("b", x=-30, y=-30), here) == {"left of", "above"}
    assert places(at("b", y=30), here) == {"below"}
    assert places(at("b", x=1), here) == set()


def test_drawn_scenes_are_found_whole_under_grain():
    rng = np.random.default_rng(5)
    colors = list(PALETTE)
    for _ in range(150):
        cells = rng.choice(GRID * GRID, rng.integers(1, 6), replace=False)
        shapes = [
            (CLASSES[rng.integers(3)], colors[rng.integers(7)], cell // GRID, cell % GRID)
            for cell in cells
        ]
        found = find_shapes(scene(shapes, rng, 6.0))
        told = {(d.kind, d.color, int(d.box[1]) // CELL, int(d.box[0]) // CELL) for d in found}
        assert told == set(shapes) and len(found) == len(shapes)


def test_a_grey_image_and_an_empty_one_hold_nothing_to_find():
    assert find_shapes(np.full((48, 48, 1), 200, np.uint8)) == []
    rng = np.random.default_rng(1)
    assert find_shapes(scene([], rng, 6.0)) == []


def test_the_reward_grades_an_image_against_its_record():
    target = '{"include": [{"class": "circle", "count": 2, "color": "red"}]}'
    images = [
        scene([("circle", "red", 0, 0), ("circle", "red", 2, 3)]),
        scene([("circle", "red", 0, 0), ("circle", "blue", 2, 3)]),
        scene([("square", "red", 0, 0)]),
    ]
    outcomes = Scorer(["composition", "composition_strict"]).score(images, [target] * 3)
    graded = [(out.scores["composition"], out.scores["composition_strict"]) for out in outcomes]
    assert graded == [(1.0, 1.0), (0.75, 0.0), (0.0, 0.0)]


def test_a_target_that_is_no_record_is_an_error_of_that_image_alone():
    good = '{"include": [{"class": "circle", "count": 1}]}'
    images = [scene([("circle", "red", 1, 1)])] * 2
    bad, fine = Scorer(["composition"]).score(images, ["OPEN", good])
    assert "not a GenEval record" in bad.error and bad.scores == {}
    assert fine.scores == {"composition": 1.0}


def test_shapes_that_do_not_exist_are_not_drawn():
    with pytest.raises(ValueError, match="only circle, square, triangle"):
        draw_shape("star", 10)
