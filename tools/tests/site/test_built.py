import pytest

from tools.site.built import problems


@pytest.mark.parametrize(
    ("file", "text", "loaded"),
    [
        ("one.html", '<script async src="https://x.test/a.js"></script>', "https://x.test/a.js"),
        ("one.html", '<link href="//x.test/a.css" rel="stylesheet">', "//x.test/a.css"),
        ("a.css", "@font-face { src: url(https://x.test/font.woff2) }", "https://x.test/font.woff2"),
        ("one.html", '<a href="https://x.test">web</a><img src="a.png"><code>src="//x.test"</code>', None),
        ("one.html", '<link rel="canonical" href="https://x.test">', None),
    ],
)
def test_what_is_loaded_from_a_server_is_found(tmp_path, file, text, loaded):
    (tmp_path / file).write_text(text)
    assert problems(tmp_path) == ([f"{file}: loads `{loaded}`"] if loaded else [])
