"""The site as `make docs` has built it: what a reader of the API pages finds."""

from pathlib import Path

import pytest
from lxml import html

import keras_mp

pytestmark = pytest.mark.slow

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
MODULES = (
    keras_mp,
    *(keras_mp.layers, keras_mp.losses, keras_mp.metrics, keras_mp.ops),
)
# By the path of the object, so that a name of two modules is one.
PUBLIC = sorted(
    {
        f"{module.__name__}.{name}"
        for module in reversed(MODULES)
        for name in module.__all__
        if f"{module.__name__}.{name}" not in {each.__name__ for each in MODULES}
        and not (module is keras_mp.layers and name in keras_mp.__all__)
    }
)
ATTRIBUTES = (
    "consecutive_skips",
    "last_overflow",
    "loss_scale",
    "master_weights",
    "skipped_steps",
    "stateless_apply",
)


@pytest.fixture(scope="module")
def entries():
    """The element of each name on the API pages, with its heading and contents."""
    if not SITE.is_dir():
        pytest.skip("needs the site: make docs")
    return {
        box[0].get("id"): box
        for page in sorted((SITE / "api").glob("*/index.html"))
        for box in html.parse(page).getroot().find_class("doc-object")
    }


def texts(box, css_class):
    """The texts of the elements of a class, without those of the members of `box`."""
    return [
        element.text_content().strip()
        for element in box.find_class(css_class)
        if next(a for a in element.iterancestors() if "doc-object" in a.classes) is box
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_described(entries, name):
    short = name.rpartition(".")[2]
    box = entries[name] if name in entries else entries[f"{name}.{short}"]
    [contents] = texts(box, "doc-contents")
    assert len(contents.split("\n")[0].split()) > 3
    assert ">>> " in contents
    if name == "keras_mp.LossScaleCollapseError":  # which users catch, and do not make
        return
    [signature] = texts(box, "doc-signature")
    assert signature.startswith(f"{short}(")
    if "Args: as in keras.layers." in contents:
        links = [a.get("href") for a in box.iter("a")]
        assert any(link.startswith("https://keras.io/api/layers/") for link in links)
    elif signature != f"{short}()":
        assert {"Parameters:", "Attributes:"} & set(texts(box, "doc-section-title"))


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_the_optimizer_are_described(entries, name):
    box = entries[f"keras_mp.FP32MasterOptimizer.{name}"]
    [contents] = texts(box, "doc-contents")
    assert len(contents.split("\n")[0].split()) > 3
