"""Numbers in documents are those of the recorded files; links lead somewhere. docs/refresh.py says how."""

import re
import runpy
from pathlib import Path

import pytest

REFRESH = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "refresh.py"))
DOCUMENTS = REFRESH["DOCUMENTS"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_numbers_and_tables_are_those_of_the_files(document):
    text = document.read_text(encoding="utf-8")
    assert REFRESH["refreshed"](text).splitlines() == text.splitlines(), "python docs/refresh.py writes them anew"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_every_comment_is_understood():
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert len(re.findall(r"<!--[\w./-]+\|", text)) == len(REFRESH["NUMBER"].findall(text)), document.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_ratio_has_its_file(document):
    bare = re.findall(r"[^ ]*\d ×(?! ?[\d<])[^\n]{,20}", document.read_text(encoding="utf-8"))
    assert not bare or document.stem == "CHANGELOG", "which file says so?"


def test_a_stale_number_and_table_are_written_anew(tmp_path):
    refreshed = REFRESH["refreshed"]
    (tmp_path / "some.json").write_text('{"a": {"b": -1234.567}}')
    (tmp_path / "some.md").write_text("# Title\n\n| x |\n")
    globals_ = refreshed.__globals__
    root, globals_["ROOT"] = globals_["ROOT"], tmp_path
    try:
        assert refreshed("−1,234.6 ×<!--some.json|a.b-->") == "−1,234.6 ×<!--some.json|a.b-->"
        assert refreshed("−9,000.0 ×<!--some.json|a.b-->") == "−1,234.6 ×<!--some.json|a.b-->"
        assert refreshed("<!--begin some.md-->\nold\n<!--end-->") == "<!--begin some.md-->\n| x |\n<!--end-->"
        (tmp_path / "some.md").write_text("# Title\n\n**One (a)**\n\n| x |\n\n**Two (b)**\n\n| y |\n\nNote.\n")
        assert refreshed("<!--begin some.md|Two-->\n<!--end-->") == "<!--begin some.md|Two-->\n| y |\n<!--end-->"
    finally:
        globals_["ROOT"] = root
