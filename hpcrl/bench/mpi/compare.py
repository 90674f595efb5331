"""From times to lines: what was measured, beside what, the ratio, and whether that meets the aim. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Group
from rich.table import Table

Line = dict[str, Any]
"""JSON types only; see `line` and `figure`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A case beside a reference that did the same work."""

    case: str
    reference: str
    reads: Literal["time", "speed"]
    """time: the ratio is the case's time in units of the reference's, small is good. speed: the inverse."""
    aim: float | None = None
    """Largest good ratio for `time`, smallest for `speed`; None: shown without an aim."""
    nbytes: int | None = None
    """Payload of one unit, for GB/s."""


def lines(measured: Mapping[str, Mapping[str, Any]], comparisons: Iterable[Comparison]) -> list[Line]:
    """One line per comparison whose case and reference were both measured (name -> {"seconds": ...})."""
    return [
        line(comparison, measured[comparison.case]["seconds"], measured[comparison.reference]["seconds"])
        for comparison in comparisons
        if comparison.case in measured and comparison.reference in measured
    ]


def line(comparison: Comparison, seconds: float, reference_seconds: float) -> Line:
    """`ratio`, `aim` (as "<= 1.00 x") and `met` (None without an aim), beside both times."""
    as_time = comparison.reads == "time"
    ratio = seconds / reference_seconds if as_time else reference_seconds / seconds
    aim = comparison.aim
    met = None if aim is None else (ratio <= aim if as_time else ratio >= aim)
    return {
        "case": comparison.case,
        "seconds": seconds,
        "gb_per_s": None if comparison.nbytes is None else comparison.nbytes / seconds / 1e9,
        "reference": comparison.reference,
        "reference_seconds": reference_seconds,
        "reads": comparison.reads,
        "ratio": ratio,
        "aim": None if aim is None else f"{'<=' if as_time else '>='} {aim:.2f} x",
        "met": met,
    }


def figure(case: str, value: float, unit: str, at_most: float | None = None) -> Line:
    """A line without a reference: `value` in `unit` ("s", "%", ...)."""
    return {
        "case": case,
        "value": value,
        "unit": unit,
        "aim": None if at_most is None else f"<= {shown(at_most, unit)}",
        "met": None if at_most is None else value <= at_most,
    }


def shown(value: float, unit: str) -> str:
    """A number for people: seconds as s, ms or us; everything else with two digits."""
    if unit != "s":
        return f"{value:.2f} {unit}".strip()
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 0.9995e-3 else f"{value * 1e6:.3g} us"


def render(result: Mapping[str, Any]) -> Group:
    """A table for each of `worlds` ({"title", "lines", maybe "notes"}), one for the `prediction` if there is one."""
    parts: list[Any] = []
    for world in result["worlds"]:
        table = _table(f"{world['title']}, {_rounds(world, result['rounds'])}", 2, _COLUMNS)
        for entry in world["lines"]:
            table.add_row(*_cells(entry))
        parts += [table, *world.get("notes", [])]
    if "prediction" in result:
        parts.append(_predicted(result["prediction"]))
    return Group(*parts)


def _rounds(world: Mapping[str, Any], asked: int) -> str:
    counts = {len(case["seconds_rounds"]) for case in world["cases"].values() if "seconds_rounds" in case}
    fewest = min(counts, default=asked)
    return f"median of {fewest} rounds" if fewest == asked else f"median of {fewest} to {asked} rounds"


_COLUMNS = ("measured", "compared with", "time", "its time", "GB/s", "ratio", "aim", "met")


def _table(title: str, num_left: int, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < num_left else "right")
    return table


def _predicted(prediction: Mapping[str, Any]) -> Table:
    title = (
        f"Predicted: a sum of {prediction['parameters']:,} parameters on {prediction['nodes']} nodes x "
        f"{prediction['ranks_per_node']} ranks, {prediction['speeds']['link_bytes_per_s'] * 8e-9:.3g} Gbit/s"
    )
    table = _table(title, 2, ("form", "compression", "time", "through a link", "hpcrl takes it"))
    for form in prediction["forms"]:
        table.add_row(
            form["exchange"],
            form["compression"],
            shown(form["seconds"], "s"),
            f"{form['link_bytes'] / 1e6:.2f} MB",
            "yes" if form["chosen"] else "",
        )
    return table


def _cells(entry: Line) -> list[str]:
    met = {True: "yes", False: "no", None: ""}[entry["met"]]
    if "value" in entry:
        return [entry["case"], "", shown(entry["value"], entry["unit"]), "", "", "", entry["aim"] or "", met]
    return [
        entry["case"],
        entry["reference"],
        shown(entry["seconds"], "s"),
        shown(entry["reference_seconds"], "s"),
        "" if entry["gb_per_s"] is None else f"{entry['gb_per_s']:.2f}",
        f"{entry['ratio']:.2f} x {'its time' if entry['reads'] == 'time' else 'as fast'}",
        entry["aim"] or "",
        met,
    ]


def size_label(nbytes: int) -> str:
    """For people: 4 KB, 28 KB, 16 MB, in powers of 1024."""
    for factor, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {name}"
    return f"{nbytes} B"
