"""Sharpness as numbers of the Hessian's spectrum, plain and on the scale of the filters."""

from diagnostics.flatness.around import Around
from diagnostics.flatness.readings import Found, Settings


def lambda_fn(around: Around, settings: Settings) -> Found:
    """Its largest eigenvalue on the scale of the filters."""
    raise NotImplementedError


def kappa_fn_trace(around: Around, settings: Settings) -> Found:
    """Its trace on the scale of the filters."""
    raise NotImplementedError


def lambda_1(around: Around, settings: Settings) -> Found:
    """Its largest eigenvalue, and over the fifth."""
    raise NotImplementedError


def trace(around: Around, settings: Settings) -> Found:
    """Its trace, and per weight."""
    raise NotImplementedError
