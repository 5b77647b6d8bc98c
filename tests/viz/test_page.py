"""The page that shows a folder of figures."""

import xml.etree.ElementTree as ET

import pyarrow as pa
from wirescope.viz import Shown, index_page


def page(**changes: object) -> str:
    given = {
        "title": "A & B",
        "intro": "<b>not bold</b>",
        "table": pa.table({"task": ["ioi", "x"], "times": pa.array([2.3814, None])}),
        "note": "n",
        "figures": [Shown("a.svg", "First", "One.\nTwo."), Shown("b.svg", "Second", "")],
        "explorer": "explorer.html",
    }
    return index_page(**given | changes)


def test_it_shows_every_figure_the_table_and_the_explorer():
    text = page()
    assert [text.count(f'<img src="{name}.svg"') for name in "ab"] == [1, 1]
    assert '<a href="explorer.html">' in text
    assert '<iframe src="explorer.html"' in text
    assert "<td>ioi</td>" in text
    assert "2.38<" in text
    assert ">-<" in text
    assert "<p>One.</p><p>Two.</p>" in text


def test_names_are_text_and_never_markup():
    text = page(title='"><script>alert(1)</script>', note="</p><script>", explorer='x".html')
    assert "<script" not in text
    assert "&lt;b&gt;not bold" in text


def test_it_is_well_formed_and_has_no_script():
    text = page()
    body = text[text.index("<body>") : text.index("</html>")]
    closed = body.replace('alt="First">', 'alt="First"/>').replace('alt="Second">', 'alt="Second"/>')
    ET.fromstring(closed)
    assert "<script" not in text
