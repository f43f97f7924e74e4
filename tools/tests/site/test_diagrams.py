from tools.site.diagrams import DRAWINGS, IMAGES, as_svg


def test_the_drawings_in_the_guides_are_those_of_the_code():
    for name, draw in DRAWINGS.items():
        assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == as_svg(draw())


def test_labels_are_text_not_markup():
    drawing = DRAWINGS["inside"]()
    assert "Accelerator(): strategy," in as_svg(drawing)
    assert as_svg(drawing).startswith("<svg ")
