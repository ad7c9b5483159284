"""What makes numbers of flatness comparable: one step h and one set of images for all of a table; and its cases.

A case is what is equal between the models, the `match` (round, or training loss), and the `variant` of their logits
(plain, as trained; or logit-normalised). A second difference over a wider step, or over other images, is another
quantity.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics.flatness import measures
from diagnostics.surfaces.objective import NORMALISED
from diagnostics.surfaces.results import Lines, Surface
from feddual.errors import UserError

Case = tuple[str, str]  # match, variant
SPLITS = {"train": "training ", "test": "test "}


@dataclass(frozen=True)
class Footing:
    """On what curvatures were measured."""

    steps: Sequence[float]  # h; two where a plane's axes differ
    images: int
    split: str
    data: str  # which images

    @classmethod
    def of(cls, measured: Lines | Surface) -> "Footing":
        """Of lines or of a plane."""
        facts, identity = measured.meta["facts"], measured.meta["identity"]
        steps = tuple(dict.fromkeys(round(step, 9) for step in measures.steps(measured)))
        rows = [str(facts.get(key)) for key in ("dataset", "rows")]  # inputs differ between kinds of models
        data = ", ".join(rows) if facts.get("rows") else str(identity.get("data", ""))
        return cls(steps, int(facts.get("images", 0)), str(facts.get("split", "")), data)

    def __str__(self) -> str:
        """`h = 0.05 on 2000 training images (1a2b3c4d)`."""
        step = " and ".join(f"{step:.3g}" for step in self.steps)
        return f"h = {step} on {self.images} {SPLITS.get(self.split, '')}images ({self.data.split(', ')[-1][:8]})"


def common(named: Mapping[str, Lines | Surface]) -> Footing:
    """The footing of all of these.

    Raises:
        UserError: When there are several.
    """
    by_footing: dict[Footing, list[str]] = {}
    for name, one in named.items():
        by_footing.setdefault(Footing.of(one), []).append(name)
    (footing, *others) = by_footing
    if others or len(footing.steps) > 1:
        listed = "".join(f"\n  {found}: {', '.join(names)}" for found, names in by_footing.items())
        raise UserError(
            "compare: curvatures of one table need one step h and one set of images, these have several:"
            f"{listed}\nMeasure them with the same grid (as many points along both axes), extent, images, split and "
            "seed, on the same data"
        )
    return footing


def case_of(surface: Surface) -> Case:
    """The case that a recorded surface belongs to."""
    normalised = str(surface.meta["identity"].get("loss")).endswith(NORMALISED)
    match = "loss" if surface.meta["facts"].get("match") == "loss" else "round"
    return match, "logit-normalised" if normalised else "plain"


def words(case: Case) -> str:
    """What sets a case apart, for people; nothing for models as they are."""
    match, variant = case
    said = ["at equal training loss" if match == "loss" else "", "" if variant == "plain" else "logits normalised"]
    return ", ".join(filter(None, said))


def named(name: str, case: Case) -> str:
    """A name with what sets its case apart."""
    return ", ".join(filter(None, [name, words(case)]))


def suffix(case: Case) -> str:
    """The same for file names: `_equal_loss_normalised`."""
    return f"{'_equal_loss' * (case[0] == 'loss')}{'_normalised' * (case[1] != 'plain')}"


def reached(subjects: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any] | None:
    """The level of models at equal training loss, and where each stands; from their names and facts."""
    found = [(name, facts) for name, facts in subjects if facts.get("match") == "loss" and "level" in facts]
    if not found:
        return None
    models: dict[str, list[dict[str, Any]]] = {}
    for name, facts in found:
        models.setdefault(name, []).append({key: facts[key] for key in ("round", "training_loss")})
    return {"level": found[0][1]["level"], "models": models}
