"""A report is one file that shows what was recorded, in a real browser and on paper, and hides nothing."""

import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from laconic.lab import records
from laconic.report import page as report
from tests.support.recorded import (
    HEADER,
    MIXED,
    THC,
    Line,
    evaluation,
    header,
    rows_of,
    run,
    step,
    synthetic,
    technique,
    write,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --v=0 --virtual-time-budget=8000"
)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


class Outline(HTMLParser):
    """What a test asks about a page: its tags, the addresses it names, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = ("src", "href", "srcset", "data", "poster", "action")
        self.addresses += [value or "" for name, value in attributes if name in names]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["script"], ["style"]):
            self.words.append(data)


def browse(page: Path, folder: Path, *options: str) -> tuple[str, list[str]]:
    """What the browser prints about the page, and the messages on its console."""
    command = [
        str(CHROMIUM),
        *FLAGS.split(),
        f"--user-data-dir={folder / 'profile'}",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def words_of(runs: list[records.Run]) -> str:
    """The text that a reader of the report sees."""
    return " ".join(" ".join(Outline(report.page(runs)).words).split())


def test_the_table_marks_the_baseline_and_the_best(tmp_path: Path) -> None:
    synthetic(tmp_path)
    page = report.page(records.find([tmp_path]))
    body = page[page.index("<tbody>") : page.index("</tbody>")]
    lines = body.split("<tr>")[1:]
    assert [">baseline<" in line for line in lines] == ["plain DDP" in line for line in lines]
    for column in range(7):
        cells = [re.findall(r"<td[^>]*>.*?</td>", line)[column] for line in lines]
        assert any("<strong>" in cell for cell in cells)
        assert not all("<strong>" in cell for cell in cells)


def test_the_best_ratio_is_the_largest_and_the_best_time_the_smallest(tmp_path: Path) -> None:
    slow = {"label": "slow", "family": "peer", "seconds": 40.0, "sent": 9000}
    rows = rows_of(tmp_path, THC | {"seconds": 2.5, "sent": 125}, slow)
    page = report.page([run for row in rows for run in row.runs])
    best = re.findall(r"<strong>(.*?)</strong>", page[page.index("THC<small>") : page.index("slow<small>")])
    assert best[1:6] == ["2.50\u00a0s", "4.0×", "125\u00a0B", "125\u00a0B", "8.0×"]
    assert page.count("2.50\u00a0s") == page.count("<strong>2.50\u00a0s</strong>")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shaped": False}, "The link was not shaped"),
        ({"note": "No root here."}, "No root here."),
        ({"family": "laconic"}, "There is no plain DDP run here"),
    ],
)
def test_what_weakens_the_numbers_is_said(tmp_path: Path, change: Line, words: str) -> None:
    assert words not in words_of([technique(tmp_path / "a.jsonl", 1.0, 1)])
    assert words in words_of([technique(tmp_path / "b.jsonl", 1.0, 1, **change)])


def test_replicas_that_differ_are_said(tmp_path: Path) -> None:
    end = {"kind": "end", "seconds": 1.0, "checksum": "0", "replicas_equal": False}
    unequal = records.read(write(tmp_path / "a.jsonl", [header(), step(1), end]))
    assert "plain DDP, seed 0, ended with replicas that differ" in words_of([unequal])


def test_a_warning_is_said_once_for_all_runs_of_a_technique(tmp_path: Path) -> None:
    loud = {"warning": "DAD is not private.", "spec": "dad", "label": "DAD", "family": "laconic"}
    seeds = [technique(tmp_path / f"{seed}.jsonl", 1.0, 1, seed=seed, **loud) for seed in (0, 1)]
    assert words_of([technique(tmp_path / "b.jsonl", 1.0, 1), *seeds]).count("DAD is not private.") == 1


def test_an_unfinished_run_is_shown_and_said(tmp_path: Path) -> None:
    cut = records.read(write(tmp_path / "a.jsonl", [header(), step(1, 0.25), step(2, 0.25)]))
    words = words_of([cut])
    assert "plain DDP, seed 0, is unfinished (2 of 200 steps) and is shown as far as it got." in words
    assert "0.250\u00a0s" in report.page([cut])


def test_different_machines_are_said(tmp_path: Path) -> None:
    runs = [technique(tmp_path / f"{n}.jsonl", 1.0, 1, spec=str(n), machine=f"machine {n}") for n in (0, 1)]
    assert "different machines" in words_of(runs)


def test_every_link_has_its_own_section(tmp_path: Path) -> None:
    runs = [technique(tmp_path / f"{link}.jsonl", 1.0, 1, link=link) for link in ("1gbit", "100mbit")]
    page = report.page(runs)
    assert page.count("<section>") == 2
    assert all(f"fashion over {link}, 4 workers" in page for link in ("1gbit", "100mbit"))


def test_everything_from_a_record_is_escaped(tmp_path: Path) -> None:
    evil = "</script></style><img src=x onerror=alert(1)>'\"&<!--{metric}$title"
    changes = {
        name: evil
        for name, value in HEADER.items()
        if isinstance(value, str) and name not in ("kind", "metric", "started")
    }
    bad = [
        technique(tmp_path / "a.jsonl", 1.0, 1, **changes, versions={evil: evil}),
        technique(
            tmp_path / "b.jsonl", 1.0, 1, **changes | dict.fromkeys(("label", "technique"), f"2{evil}")
        ),
    ]
    bad.append(run(tmp_path / "c.jsonl", *_steps_of(evil), **changes | {"spec": "c", "label": f"3{evil}"}))
    plain = [technique(tmp_path / f"{n}.jsonl", 1.0, 1, family="laconic", spec=str(n)) for n in (0, 1)]
    plain.append(run(tmp_path / "2.jsonl", *_steps_of("fc"), family="laconic", spec="2"))
    page, clean = report.page(bad), report.page(plain)
    assert "<img src=x" not in page
    assert sorted(set(Outline(page).tags)) == sorted(set(Outline(clean).tags))
    assert page.count("</script") == clean.count("</script")
    assert f"2{evil}" in words_of(bad)


def _steps_of(name: str) -> list[Line]:
    """Phases, readings and layers of this name."""
    travel = {"layer": name, "shape": [9, 8], "way": name, "numbers": 1, "gradient": 2, "saves": 2.0}
    read = {f"rank {name}": 3.0, name: 1.0}
    steps = [step(number, phases={name: 0.5, "compute": 0.1}, readings=read) for number in (1, 2)]
    return [*steps, {"kind": "layers", "layers": [travel]}, evaluation(2, 0.9, 2.0)]


def test_a_row_that_read_ranks_has_a_heat_map_under_its_own_label(tmp_path: Path) -> None:
    evil = "Rank<b>{metric}"
    read = [step(number, readings={"rank <b>fc": 3.0, "kept <b>fc": 0.9}) for number in (1, 2)]
    ranked = run(tmp_path / "a.jsonl", *read, label=evil, spec="a", family="laconic")
    plain = technique(tmp_path / "b.jsonl", 1.0, 1)
    page = report.page([plain, ranked])
    assert page.count("Effective rank: ") == page.count('<figure class="wide">') == 1
    assert f"Effective rank: {evil}" in words_of([plain, ranked])
    assert "<b>" not in page[: page.index("<script>")]
    assert "Effective rank" not in report.page([plain])


def test_how_layers_travel_is_a_table_under_the_rows_label(tmp_path: Path) -> None:
    layer = {"layer": "<b>fc", "shape": [10, 128], "way": "two ways", "numbers": 1132, "gradient": 2580}
    lines = [step(1), {"kind": "layers", "layers": [layer | {"saves": 2.279}]}, step(2)]
    seeds = [
        run(tmp_path / f"{seed}.jsonl", *lines, label="RankDAD<b>", spec="a", family="laconic", seed=seed)
        for seed in (0, 1)
    ]
    plain = technique(tmp_path / "b.jsonl", 1.0, 1)
    words = words_of([plain, *seeds])
    assert words.count("How each layer travels") == words.count("How each layer travels with RankDAD<b>") == 1
    assert "layer weight travels numbers gradient saves <b>fc 10×128 two ways 1,132 2,580 2.3×" in words
    assert "How each layer travels" not in words_of([plain])


def test_consensus_is_a_chart_and_a_setting_of_the_runs_that_have_it(tmp_path: Path) -> None:
    plain = technique(tmp_path / "b.jsonl", 1.0, 1)
    points = [evaluation(number, 0.9, 1.0, consensus=1e-4 / number) for number in (1, 2)]
    mixed = {"label": "Crossover", "spec": "crossover", "family": "laconic"}
    gossip = records.read(write(tmp_path / "a.jsonl", [header(**mixed), step(1), *points, MIXED]))
    cut = records.read(write(tmp_path / "c.jsonl", [header(**mixed, seed=1), step(1)]))
    page = report.page([plain, gossip, cut])
    assert page.count('id="chart-0-consensus"') == 1
    assert "2.5e-05" in page[page.index("<details>") :]
    alone = report.page([plain])
    assert "chart-0-consensus" not in alone
    assert "consensus" not in alone[alone.index("</dl>\n<h3>") : alone.index("</details>")]


def test_a_report_names_no_address(tmp_path: Path) -> None:
    page = report.page(synthetic(tmp_path, seeds=1))
    assert Outline(page).addresses == []
    assert not re.search(r"url\(|@import", page[: page.index("</style>")])
    assert "default-src 'none'" in page


def test_a_report_without_runs_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        report.write([], tmp_path / "report.html")


def test_a_place_that_cannot_be_written_gets_one_sentence(tmp_path: Path) -> None:
    runs = [technique(tmp_path / "a.jsonl", 1.0, 1)]
    with pytest.raises(OSError, match=r"no report can be written to .*; choose another place"):
        report.write(runs, tmp_path / "a.jsonl" / "report.html")


def test_a_missing_extra_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"run pip install 'laconic\[report\]'"):
        report.write([technique(tmp_path / "a.jsonl", 1.0, 1)], tmp_path / "report.html")


@pytest.fixture(scope="module")
def hard_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two links, one of them with a run that diverged, one that was cut, and hostile names."""
    folder = tmp_path_factory.mktemp("hard")
    synthetic(folder / "fast", link="1gbit")
    synthetic(folder / "slow", task="text", metric="loss", higher_is_better=False)
    lost = [step(1, loss=2.0), step(2, loss=math.nan), evaluation(2, math.nan, 1.0)]
    write(
        folder / "lost.jsonl",
        [header(label="</script>'\"", spec="lost", family="laconic", link="1gbit"), *lost],
    )
    return report.write(records.find([folder]), folder / "out" / "report.html")


@in_a_browser
def test_a_browser_draws_every_chart_without_a_message(hard_page: Path, tmp_path: Path) -> None:
    document, messages = browse(hard_page, tmp_path, "--dump-dom")
    assert messages == []
    assert len(re.findall(r'<div class="chart\b[^>]* id="chart-', document)) == 10
    assert len(re.findall(r'<svg[^>]* class="marks"', document)) == 10
    assert 'data-drawn="10"' in document


@in_a_browser
def test_the_browser_check_sees_a_message(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<script>console.warn('careful'); missing()</script>", encoding="utf-8")
    messages = browse(page, tmp_path, "--dump-dom")[1]
    assert ["careful" in line or "missing" in line for line in messages] == [True, True]


@in_a_browser
def test_a_chart_that_cannot_be_drawn_says_so(tmp_path: Path) -> None:
    page = report.write(synthetic(tmp_path, seeds=1), tmp_path / "report.html")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(json.dumps("layer"), json.dumps("lair"), 1), encoding="utf-8")
    document, messages = browse(page, tmp_path, "--dump-dom")
    assert document.count(">This chart could not be drawn: ") == 1
    assert messages


@in_a_browser
def test_a_report_prints_with_its_details_open(tmp_path: Path) -> None:
    page = report.write(synthetic(tmp_path, seeds=1, steps=20), tmp_path / "report.html")
    opened = pages(page, tmp_path)
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("details.open = true", "details.open = false"), encoding="utf-8")
    assert opened > pages(page, tmp_path) > 1


def pages(page: Path, folder: Path) -> int:
    """How many sheets of paper the page takes."""
    printed = folder / "report.pdf"
    browse(page, folder, f"--print-to-pdf={printed}")
    return len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))
