"""Numbers in documents are those of the recorded files.

A number that comes from a file is followed by a comment that says from where, which a reader does not see:

    6.4<!--figures/gallery/fig2_ratios.csv|definition=drift,layer=output|ratio-->
    6.4<!--fig2|lenet_published/drift/output|ratio-->       (the same in short, see SHORT)
    1.23 ×<!--benchmarks/results/algorithm.json|ratios.running-->

A table between `<!--begin FILE-->` and `<!--end-->` is that file's, without its title.
"""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NUMBER = re.compile(r"([-−]?\d[\d,]*(?:\.\d+)?)[^\d<]{0,4}<!--([\w./-]+)\|([^>]*?)-->")
SHORT = {"fig2": ("figures/gallery/fig2_ratios.csv", ("model", "definition", "layer"), "normalisation=rms")}


def value_of(file: str, query: str) -> float:
    if file in SHORT:
        file, keys, rest = SHORT[file]
        places, column = query.split("|")
        pairs = zip(keys, places.split("/"), strict=True)
        query = ",".join([*(f"{key}={place}" for key, place in pairs), rest]) + f"|{column}"
    path = ROOT / file
    if path.suffix == ".json":
        value = json.loads(path.read_text())
        for key in query.split("."):
            value = value[key]
        return float(value)
    where, column = query.split("|")
    frame = pd.read_csv(path)
    for condition in where.split(","):
        key, _, wanted = condition.partition("=")
        frame = frame[frame[key].astype(str) == wanted]
    assert len(frame) == 1, f"{file}: {query} means {len(frame)} rows"
    return float(frame[column].iloc[0])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_numbers_are_those_of_the_files(document):
    for shown, file, query in NUMBER.findall(document.read_text()):
        text = shown.replace(",", "").replace("−", "-")
        digits = len(text.partition(".")[2])
        assert float(text) == pytest.approx(value_of(file, query), abs=0.5000001 * 10**-digits), (shown, file, query)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_those_of_the_files(document):
    for file, table in re.findall(r"<!--begin ([\w./-]+)-->\n(.*?)<!--end-->", document.read_text(), re.DOTALL):
        recorded = (ROOT / file).read_text().partition("\n")[2]
        assert table.strip() == recorded.strip(), f"{document.name}: the table of {file} is not the recorded one"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_every_comment_is_understood():
    for document in DOCUMENTS:
        comments = re.findall(r"<!--[\w./-]+\|", document.read_text())
        assert len(comments) == len(NUMBER.findall(document.read_text())), document.name
