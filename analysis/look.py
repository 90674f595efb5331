"""How pictures and tables look, in one place for all scripts."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by color-blind readers too."""
INK = "#333333"
FAINT = "#666666"
LEGEND_WIDTH = 150
"""characters that fit below the panels"""


def color(index: int) -> str:
    """Color of the index-th thing; they begin again after the last (see `style`)."""
    return COLORS[index % len(COLORS)]


def style(index: int) -> str:
    """Line style of the index-th thing: another one for each round of colors."""
    return ("-", "--", ":", "-.")[index // len(COLORS) % 4]


def new_figure(width: float = 10.5, height: float = 4.6) -> Figure:
    """An empty figure, in inches, that lays itself out."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def tidy(axis: Axes, title: str = "") -> None:
    """Grid behind the data, no box around it, a title at the left."""
    axis.grid(color="#E3E3E3", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.tick_params(colors=INK, length=3)
    if title:
        axis.set_title(title, fontsize=10.5, fontweight="bold", color=INK, loc="left")


def env_steps_axis(axis: Axes) -> None:
    """Label the x axis as env_steps, in k and M."""
    axis.set_xlabel("env_steps trained")
    axis.xaxis.set_major_formatter(lambda value, _: short(value))


def say(axis: Axes, text: str) -> None:
    """Say in an empty panel why it is empty; the numbers on its axes would mean nothing."""
    axis.text(0.5, 0.6, text, ha="center", color=FAINT, transform=axis.transAxes)
    axis.set(xticks=[], yticks=[])


def legend_below(figure: Figure, *axes: Axes) -> None:
    """One legend for the whole figure, of what is labeled on any of `axes`, in as many columns as fit."""
    named = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels, handles = list(named), list(named.values())
    if not labels:
        return
    columns = max(1, min(len(labels), 3, LEGEND_WIDTH // max(len(label) + 8 for label in labels)))
    more_rows = max(0, -(-len(labels) // columns) - 2)
    figure.set_figheight(figure.get_figheight() + 0.18 * more_rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def time_unit(longest_s: float) -> tuple[str, float]:
    """(name, seconds) of the unit in which times up to `longest_s` are best read."""
    if longest_s >= 2 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 120 else ("s", 1.0)


def short(value: float) -> str:
    """A number with k, M or B."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def clip(text: str, width: int = 60) -> str:
    """Text that is not longer than `width`."""
    return text if len(text) <= width else text[: width - 1] + "…"


def cell(value: Any) -> str:
    """One value of a table as people read it: four digits, thousands apart, a dash for what is not known."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with every value as text."""
    columns = {name: [cell(value) for value in frame[name].tolist()] for name in frame}
    return pd.DataFrame(columns, index=frame.index)


def markdown(frame: pd.DataFrame) -> str:
    """The table for a terminal or a page: Markdown, its columns aligned."""
    body = cells(frame)
    rows = [[str(name) for name in body.columns], *body.to_numpy().tolist()]
    widths = [max(3, *(len(row[place]) for row in rows)) for place in range(len(body.columns))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"
