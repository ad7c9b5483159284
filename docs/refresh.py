"""Numbers in documents are those of the recorded files: `python docs/refresh.py` writes them anew, a test compares.

A number that comes from a file is followed by a comment that says from where, which a reader does not see:

    6.4<!--figures/gallery/fig2_ratios.csv|definition=drift,layer=output|ratio-->
    6.4<!--fig2|lenet_published/drift/output|ratio-->       (the same in short, see SHORT)
    1.23 ×<!--benchmarks/results/algorithm.json|ratios.running-->

It keeps its decimals. A table between `<!--begin FILE-->` and `<!--end-->` is that file's, without its title;
`<!--begin FILE|Adam-->` is the one table of the file whose heading begins with Adam.
"""

import json
import re
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NUMBER = re.compile(r"([-−]?\d[\d,]*(?:\.\d+)?)([^\d<]{0,4}<!--([\w./-]+)\|([^>]*?)-->)")
TABLE = re.compile(r"(<!--begin ([\w./-]+)(?:\|([^>]+?))?-->\n).*?(<!--end-->)", re.DOTALL)
PLAIN = {"match": "round", "variant": "plain"}  # of models as they are
SHORT = {  # file, the columns that are named, and others that are fixed
    "fig1": ("figures/gallery/fig1_table.csv", ("quantity", "group"), PLAIN),
    "fig2": ("figures/gallery/fig2_ratios.csv", ("model", "definition", "layer"), {"normalisation": "rms"}),
    "fig6": ("figures/gallery/fig6_table.csv", ("setting", "quantity", "group"), PLAIN),
    "barriers": (
        "figures/gallery/barriers_table.csv",
        ("quantity", "between", "layer", "experiment"),
        {"order": "as trained"},
    ),
    "flatness": ("figures/gallery/flatness.csv", ("of", "quantity", "model"), PLAIN),
}


def value_of(file: str, query: str) -> float:
    """The recorded number that a comment means."""
    path = ROOT / SHORT[file][0] if file in SHORT else ROOT / file
    if path.suffix == ".json":
        value = json.loads(path.read_text(encoding="utf-8"))
        for key in query.split("."):
            value = value[key]
        return float(value)
    where, column = query.split("|")
    if file in SHORT:
        _, keys, fixed = SHORT[file]
        conditions = dict(zip(keys, where.split("/"), strict=True)) | fixed
    else:
        conditions = dict(condition.split("=", 1) for condition in where.split(","))
    frame = pd.read_csv(path)
    for key, wanted in conditions.items():
        frame = frame[frame[key].astype(str) == wanted]
    if len(frame) != 1:
        raise LookupError(f"{file}: {query} means {len(frame)} rows")
    return float(frame[column].iloc[0])


def refreshed(text: str) -> str:
    """A document's text with its numbers and tables as recorded."""

    def number(match: re.Match[str]) -> str:
        shown, comment, file, query = match.groups()
        digits = len(shown.partition(".")[2])
        value = value_of(file, query)
        if abs(float(shown.replace(",", "").replace("−", "-")) - value) <= 0.5000001 * 10**-digits:
            return match[0]
        text = f"{value:{',' if ',' in shown else ''}.{digits}f}"
        return (text.replace("-", "−") if "−" in shown else text) + comment

    def table(match: re.Match[str]) -> str:
        recorded = (ROOT / match[2]).read_text(encoding="utf-8").partition("\n")[2]
        if match[3]:
            parts = recorded.split(f"**{match[3]}", 1)
            if len(parts) < 2:
                raise LookupError(f"{match[2]}: no table whose heading begins with {match[3]!r}")
            recorded = parts[1].split("\n\n")[1]
        return f"{match[1]}{recorded.strip()}\n{match[4]}"

    return TABLE.sub(table, NUMBER.sub(number, text))


if __name__ == "__main__":
    for document in DOCUMENTS:
        before = document.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            document.write_text(after, encoding="utf-8")
            print(document.relative_to(ROOT))
