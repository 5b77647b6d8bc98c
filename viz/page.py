"""A page that shows what is in a folder: figures with their captions, a table, and a link to the explorer.

Plain HTML without a script: it works from a disk, and prints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from . import style


@dataclass(frozen=True)
class Shown:
    """A figure of the page: its file beside the page, what it shows in a line, and its caption."""

    file: str
    title: str
    caption: str


def index_page(
    *, title: str, intro: str, table: pa.Table, note: str, figures: Sequence[Shown], explorer: str
) -> str:
    """The page; `explorer` is the file of the interactive page, which it shows as well."""
    head = "".join(
        f'<th class="{"number" if pa.types.is_floating(field.type) else "text"}">{escape(field.name)}</th>'
        for field in table.schema
    )
    rows = "".join(
        f"<tr>{''.join(_cell(value) for value in row.values())}</tr>\n" for row in table.to_pylist()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(intro)}</p>
<h2>Times fewer units</h2>
<div class="wide"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}</tbody>
</table></div>
<p class="caption">{escape(note)}</p>
{"".join(map(_figure, figures))}<h2>Explorer</h2>
<p><a href="{escape(explorer)}">Open the explorer</a>: circuits of any size, node by node.</p>
<iframe src="{escape(explorer)}" title="Explorer"></iframe>
</body>
</html>
"""


def _figure(shown: Shown) -> str:
    facts = "".join(f"<p>{escape(line)}</p>" for line in shown.caption.splitlines())
    return (
        f'<h2>{escape(shown.title)}</h2>\n<figure><img src="{escape(shown.file)}" alt="{escape(shown.title)}">\n'
        f"<figcaption><details><summary>Caption</summary>{facts}</details></figcaption></figure>\n"
    )


def _cell(value: object) -> str:
    if value is None:
        return '<td class="number">-</td>'
    if isinstance(value, float):
        return f'<td class="number">{value:.3g}</td>'
    return f"<td>{escape(str(value))}</td>"


_STYLE = f"""
:root {{ color-scheme: light; }}
body {{ font: 15px/1.5 {", ".join(f'"{font}"' if " " in font else font for font in style.FONTS)};
  color: {style.INK}; background: white; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin-top: 2.5rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.85rem; }}
th, td {{ padding: 0.2rem 0.9rem 0.2rem 0; text-align: left; border-bottom: 1px solid {style.GRID}; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
th.number {{ text-align: right; }}
figure {{ margin: 0; }} img {{ width: 100%; max-width: 46rem; }}
.caption, figcaption {{ color: {style.SOFT_INK}; font-size: 0.85rem; }} figcaption p {{ margin: 0; }}
iframe {{ width: 100%; height: 46rem; border: 1px solid {style.GRID}; }}
"""
