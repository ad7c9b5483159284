"""A table as Markdown, LaTeX (booktabs) and CSV."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from feddual.records.run_dir import atomic_write

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "±": r"$\pm$", "×": r"$\times$", "−": r"$-$", "–": "--", "≈": r"$\approx$", "α": r"$\alpha$", "β": r"$\beta$",
    "κ": r"$\kappa$", "λ": r"$\lambda$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "ε": r"$\varepsilon$",
    "‖": r"$\|$", "ℓ": r"$\ell$", "∞": r"$\infty$", "Δ": r"$\Delta$",
    "μ": r"$\mu$", "≥": r"$\geq$", ">": r"$>$", "<": r"$<$",
}  # fmt: skip


class Strong(str):
    """The text of a cell that stands out."""


@dataclass(frozen=True)
class Block:
    """A part of a table with its own columns.

    Args:
        title: Above it.
        columns: Their heads.
        rows: Cells as people read them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write(
    name: str, title: str, sections: Sequence[Block], notes: Sequence[str], frame: pd.DataFrame, out: Path
) -> list[Path]:
    """Write NAME.md and NAME.tex as people read it, and the tidy frame as NAME.csv."""
    files = {
        out / f"{name}.md": markdown(title, sections, notes),
        out / f"{name}.tex": latex(name, title, sections, notes),
        out / f"{name}.csv": frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"),
    }
    for path, text in files.items():
        atomic_write(path, text.encode())
    return list(files)


def markdown(title: str, sections: Sequence[Block], notes: Sequence[str]) -> str:
    lines = [f"# {title}", ""]
    for section in sections:
        lines += [f"**{section.title}**", ""] if section.title else []
        lines += [_markdown_row(section.columns), "|---|" + "---:|" * (len(section.columns) - 1)]
        lines += [*map(_markdown_row, section.rows), ""]
    return "\n".join([*lines, *(note.replace("*", r"\*") + "\n" for note in notes)])


def _markdown_row(cells: Sequence[str]) -> str:
    texts = [re.sub(r"([*|])", r"\\\1", cell) for cell in cells]
    shown = [f"**{t}**" if isinstance(c, Strong) else t for c, t in zip(cells, texts, strict=True)]
    return f"| {' | '.join(shown)} |"


def latex(name: str, title: str, sections: Sequence[Block], notes: Sequence[str]) -> str:
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{_latex(title)}}}"]
    lines += [rf"\label{{tab:{name}}}"]
    for section in sections:
        lines += [rf"\medskip\textit{{{_latex(section.title)}}}\par\smallskip"] if section.title else []
        lines += [r"\begin{tabular}{l" + "r" * (len(section.columns) - 1) + "}", r"\toprule"]
        lines += [_latex_row(section.columns), r"\midrule", *map(_latex_row, section.rows)]
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    lines += [rf"\par\smallskip\footnotesize {_latex(note)}" for note in notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(rf"\textbf{{{_latex(c)}}}" if isinstance(c, Strong) else _latex(c) for c in cells) + r" \\"


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
