"""A web page that is one file: pictures and tables inside it, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence

import matplotlib as mpl
import pandas as pd
from look import cells
from matplotlib.figure import Figure

LONG = 40
"""characters from which on a text in a table may be broken"""
MOST_ROWS = 25
"""of a table that is open from the start"""
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ margin: 0 auto; max-width: 74rem; padding: 1.5rem; color: #222; background: #fff;
       font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }}
h1 {{ font-size: 1.6rem; margin: 0 0 .3rem; }}
h2 {{ font-size: 1.2rem; margin: 2.4rem 0 .4rem; padding-top: .6rem; border-top: 2px solid #0072B2; }}
nav a {{ margin-right: 1rem; color: #0072B2; }}
p, li {{ max-width: 62rem; }}
.note {{ color: #555; }}
.bad {{ color: #A33B00; font-weight: 600; }}
img {{ max-width: 100%; height: auto; display: block; margin: .6rem 0; }}
.wide {{ overflow-x: auto; margin: .6rem 0 1rem; }}
table {{ border-collapse: collapse; font-size: .85rem; }}
caption {{ text-align: left; color: #555; padding-bottom: .2rem; }}
th, td {{ padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }}
th {{ border-bottom: 2px solid #999; white-space: nowrap; }}
td {{ white-space: nowrap; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
td.l {{ white-space: normal; min-width: 18rem; }}
details {{ margin: .4rem 0; }}
summary {{ cursor: pointer; color: #0072B2; }}
pre {{ background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .8rem; }}
@media print {{ h2 {{ break-after: avoid; }} img, tr {{ break-inside: avoid; }} nav {{ display: none; }} }}
</style>
</head>
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole page; `lead` and the second of each section (heading, body) are HTML."""
    links = " ".join(
        f'<a href="#part{index}">{html.escape(name)}</a>' for index, (name, _) in enumerate(sections)
    )
    bodies = "\n".join(
        f'<section>\n<h2 id="part{index}">{html.escape(name)}</h2>\n{body}\n</section>'
        for index, (name, body) in enumerate(sections)
    )
    name = html.escape(title)
    return (
        f"{_HEAD.format(title=name)}<body>\n<header>\n<h1>{name}</h1>\n{lead}\n<nav>{links}</nav>\n</header>\n"
        f"<main>\n{bodies}\n</main>\n</body>\n</html>\n"
    )


def text(*sentences: str, kind: str = "") -> str:
    """A paragraph of plain text; `kind`: note or bad."""
    style = f' class="{kind}"' if kind else ""
    return f"<p{style}>{html.escape(' '.join(filter(None, sentences)))}</p>"


def listing(items: Iterable[str], kind: str = "") -> str:
    """Plain texts, one below the other; nothing where there is none."""
    style = f' class="{kind}"' if kind else ""
    rows = "".join(f"<li{style}>{html.escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def table(frame: pd.DataFrame, caption: str = "") -> str:
    """A table; numbers are aligned at the right. A long one is behind a line that opens it."""
    kinds = [_kind(frame[name]) for name in frame]

    def row(values: Iterable[object], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        parts = (
            f"<{tag}{kind}{scope}>{html.escape(str(value))}</{tag}>"
            for value, kind in zip(values, kinds, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    head = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = "\n".join(row(values, "td") for values in cells(frame).to_numpy().tolist())
    inner = f"{head}<thead>{row(frame.columns, 'th')}</thead>\n<tbody>{body}</tbody>"
    whole = f'<div class="wide"><table>{inner}</table></div>'
    if len(frame) <= MOST_ROWS:
        return whole
    return (
        f"<details><summary>{html.escape(caption or 'table')}: {len(frame)} rows</summary>{whole}</details>"
    )


def _kind(column: pd.Series) -> str:
    """Class of a column: n of numbers, l of texts too long for one line."""
    if pd.api.types.is_numeric_dtype(column):
        return ' class="n"'
    return ' class="l"' if any(len(str(value)) > LONG for value in column) else ""


def picture(figure: Figure, alt: str) -> str:
    """A figure as an SVG inside the page, with a sentence for those who do not see it."""
    drawn = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "hpcrl"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    data = base64.b64encode(drawn.getvalue().encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{html.escape(alt)}">'


def details(summary: str, content: str) -> str:
    """Long text behind a line that opens it."""
    return f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(content)}</pre></details>"
