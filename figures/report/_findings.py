"""What the numbers say, in a sentence each: accuracy, gradient norms, flatness."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diagnostics import gradients
from diagnostics.statistics import NO_INTERVAL, over_seeds, said
from figures._results import signed
from figures.report._landscape import compared
from figures.report._story import UNITS, Story

MOST = 4  # runs named in a sentence
RISE = "rise_0.5"


@dataclass(frozen=True)
class Finding:
    """A sentence, and the numbers in it."""

    text: str
    numbers: dict[str, Any]


def findings(story: Story) -> list[Finding]:
    """What can be said of these runs; nothing about what was not recorded."""
    return [*_accuracy(story), *_gradients(story), *_flatness(story)]


def _accuracy(story: Story) -> Iterator[Finding]:
    means = {group.label: over_seeds([run.summary["accuracy"] for run in group.runs])[0] for group in story.groups}
    known = {label: mean for label, mean in means.items() if mean == mean}
    if not known:
        return
    if len(known) > MOST:
        ordered = sorted(known, key=known.__getitem__)
        best, worst = ordered[-1], ordered[0]
        text = f"Of {len(known)}, {best} is the most accurate with {known[best]:.1%}, {worst} the least with"
        yield Finding(f"{text} {known[worst]:.1%} of the test images.", known)
        return
    (first, base), *others = known.items()
    parts = [f"{label} {mean:.1%} ({signed(100 * (mean - base), 1)} points)" for label, mean in others]
    text = f"{first} classifies {base:.1%} of the test images correctly (mean of the last 10 % of rounds)"
    yield Finding("; ".join([text, *parts]) + ".", known)


def _gradients(story: Story) -> Iterator[Finding]:
    """Definition A of the first run that can be compared with another."""
    for group in story.groups:
        base = story.base_of(group)
        if base is group:
            continue
        table = gradients.ratios_by_seed(base.gradient_norms, group.gradient_norms, ["A"], UNITS)
        if len(table):
            times = dict(zip(table["layer"], table["ratio"], strict=True))
            ordered = sorted(times, key=times.__getitem__)
            least, most = (f"{times[layer]:.1f} ({layer})" for layer in (ordered[0], ordered[-1]))
            text = f"At the global model a client's gradient is {least} to {most} times as long in {group.label}"
            alone = f" ({NO_INTERVAL})" if table["runs"].max() == 1 else ""
            yield Finding(f"{text} as in {base.label}{alone}.", times)
            return


def _flatness(story: Story) -> Iterator[Finding]:
    made = compared(story)
    if made is None or made.summary["model"].nunique() > MOST:
        return
    table = made.summary[(made.summary["quantity"] == RISE) & (made.summary["variant"] == "plain")]
    rows = table[table["match"] == table["match"].iloc[0]].to_dict("records")
    parts = [f"{said(row['mean'], row['low'], row['high'], '.2f')} around {row['model']}" for row in rows]
    text = f"Half a filter norm away in a random direction the loss is higher by {', '.join(parts)}"
    text += f" ({NO_INTERVAL})." if rows[0]["seeds"] == 1 else "."
    yield Finding(text, {str(row["model"]): row["mean"] for row in rows})
