"""The page: whole, self-contained, and without an error in a real browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import page
import pandas as pd
import pytest
from report import report

from tests.unit.analysis.support import make_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECTIONS = ["Runs", "Learning curves", "Scores", "Lag", "Throughput", "Time", "Cost", "Origin"]
VOID = {"meta", "link", "img", "br"}


class Checker(HTMLParser):
    """Tags are closed in order; what the page refers to is inside it."""

    def __init__(self):
        super().__init__()
        self.open, self.headings, self.pictures, self.links, self.words = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            self.pictures.append(values)
        self.links += [values[name] for name in ("href", "src") if name in values]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        self.words.append(data)


def checked(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for seed in range(4):
        make_run(folder, seed=seed, returns=[seed] * 20, evaluation=(1.0, seed), attempts=1 + seed % 2)
        make_run(folder, seed=seed, algorithm="a2c", returns=[9 + seed] * 20, evaluation=(8.0 + seed, 9.0))
    make_run(folder, seed=4, status=None)
    return report([folder], title="<b>toy & more</b>")


def test_the_page_has_every_section_with_pictures_and_tables(text):
    found = checked(text)
    assert found.headings == SECTIONS
    assert len(found.pictures) == 8 and all(one["alt"] for one in found.pictures)
    words = " ".join(" ".join(found.words).split())
    for part in (
        "toy-0-002: a2c on CartPole-v1, scheme pipeline, seed 0: finished after 1,000 env_steps in 10.0 s",
        "toy-4-001 is not finished but killed",
        "a2c is better than ppo at the 5 % level",
        "left out, 1 of 9 runs: toy-4-001: killed",
        "algorithm.update",
        "env_steps_per_node_hour",
    ):
        assert part in words
    assert "Nothing to show" not in words


def test_the_page_loads_nothing_and_escapes_what_it_shows(text):
    found = checked(text)
    assert [link for link in found.links if not link.startswith(("data:", "#part"))] == []
    assert "default-src 'none'" in text and "<script" not in text
    assert "&lt;b&gt;toy &amp; more&lt;/b&gt;" in text and "<b>toy" not in text


def test_a_section_without_anything_says_why(tmp_path):
    run = make_run(tmp_path, status=None)
    (run / "attempts/001.h5").unlink()
    found = checked(report([run]))
    words = " ".join(found.words)
    assert found.headings == SECTIONS and words.count("Nothing to show: ") == 5
    assert "no training episode has ended" not in words  # that one is in the picture


def test_long_tables_are_behind_a_line():
    assert "<details>" not in page.table(pd.DataFrame({"a": range(page.MOST_ROWS)}))
    assert "<summary>hops: 26 rows</summary>" in page.table(
        pd.DataFrame({"a": range(page.MOST_ROWS + 1)}), "hops"
    )
    checked(page.table(pd.DataFrame({"a": range(99), "b": "<i>"})))


def test_the_page_is_without_error_in_a_browser(text, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(
            f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt-get install chromium)"
        )
    broken = text.replace("</body>", '<img src="https://example.invalid/x.png" alt=""></body>')
    messages = [
        console(browser, content, tmp_path / name) for name, content in (("good", text), ("bad", broken))
    ]
    assert messages[0] == [] and len(messages[1]) == 1 and "Content Security Policy" in messages[1][0]
    assert (tmp_path / "good/shot.png").stat().st_size > 50_000


def console(browser, content, folder):
    """What the browser's console says of the page; a picture of it is left in shot.png."""
    folder.mkdir()
    (folder / "page.html").write_text(content, encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
    ]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1300,2000",
        f"--screenshot={folder / 'shot.png'}",
    ]
    done = subprocess.run(
        [*command, f"file://{folder / 'page.html'}"], capture_output=True, text=True, timeout=120, check=True
    )
    return re.findall(r"CONSOLE.*", done.stderr)
