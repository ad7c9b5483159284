"""Rows and arrays as Parquet files: small, and read back as they were.

Rows are mappings, of which not all have the same keys: a key that a row lacks is null. A column of one plain type is
stored as such; what is nested or mixed is JSON text, and marked so. Arrays stand one to a row, with their shape, in the
column of their type; floats are split into streams of bytes, which compress better. Neither changes a bit.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feddual.errors import UserError

Row = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray | str]
JSON = {b"feddual": b"json"}  # marks a column of JSON text
KEYS = ("run", "item", "array", "shape")  # of a table of arrays; all other columns are values by type
TEXT = "text"


def rows_bytes(rows: Sequence[Row]) -> bytes:
    """Rows as the bytes of a Parquet file."""
    import pyarrow as pa

    fields, columns = [], []
    for key in dict.fromkeys(key for row in rows for key in row):
        kinds = {type(row[key]) for row in rows if key in row}
        plain = len(kinds) == 1 and kinds <= {int, float, str, bool}
        if plain:
            columns.append(pa.array([row.get(key) for row in rows]))
        else:
            columns.append(pa.array([_json(row[key]) if key in row else None for row in rows], pa.string()))
        fields.append(pa.field(key, columns[-1].type, metadata=None if plain else JSON))
    return _bytes(pa.Table.from_arrays(columns, schema=pa.schema(fields)))


class RowTable:
    """The rows of a file, by the text in its first column; those of one text stand together."""

    def __init__(self, path: Path):
        self._table = _read(path)
        self._places: dict[str, tuple[int, int]] = {}  # where its rows begin, and how many there are
        for place, name in enumerate(self._table.column(0).to_pylist() if self._table is not None else ()):
            begin, count = self._places.get(name, (place, 0))
            self._places[name] = (begin, count + 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def count(self, name: str) -> int:
        """How many rows there are of this name."""
        return self._places.get(name, (0, 0))[1]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The rows of this name, without the name."""
        if self._table is None or name not in self._places:
            return []
        part = self._table.slice(*self._places[name]).drop_columns(self._table.column_names[:1])
        rows: list[dict[str, Any]] = [{} for _ in range(part.num_rows)]
        for entry, column in zip(part.schema, part.columns, strict=True):
            if column.null_count == part.num_rows:
                continue
            for row, value in zip(rows, column.to_pylist(), strict=True):
                if value is not None:
                    row[entry.name] = json.loads(value) if entry.metadata == JSON else value
        return rows


def arrays_bytes(items: Mapping[tuple[str, str], Arrays]) -> bytes:
    """Arrays, and texts, by (run, item) as the bytes of a Parquet file."""
    import pyarrow as pa

    lines = [(*key, name, np.asarray(value)) for key, arrays in items.items() for name, value in arrays.items()]
    kinds = [TEXT if array.dtype.kind == "U" else str(array.dtype) for *_, array in lines]
    columns = {key: pa.array([line[place] for line in lines], pa.string()) for place, key in enumerate(KEYS[:3])}
    columns["shape"] = pa.array([array.shape for *_, array in lines], pa.list_(pa.int32()))
    for kind in dict.fromkeys(kinds):
        element = pa.string() if kind == TEXT else pa.from_numpy_dtype(kind)
        values = [array.ravel() if own == kind else None for own, (*_, array) in zip(kinds, lines, strict=True)]
        columns[kind] = pa.array(values, pa.list_(element))
    floats = [f"{kind}.list.element" for kind in columns if kind.startswith("float")]
    others = [key if key in KEYS[:3] else f"{key}.list.element" for key in columns if not key.startswith("float")]
    return _bytes(pa.table(columns), use_byte_stream_split=floats, use_dictionary=others)


class ArrayTable:
    """The arrays of a file, by run and item."""

    def __init__(self, path: Path):
        self._table = _read(path)
        self._places: dict[tuple[str, str], dict[str, int]] = {}
        if self._table is not None:
            keys = zip(*(self._table.column(key).to_pylist() for key in KEYS[:3]), strict=True)
            for place, (run, item, array) in enumerate(keys):
                self._places.setdefault((run, item), {})[array] = place

    def items(self, run: str) -> list[str]:
        """What there is of a run."""
        return [item for owner, item in self._places if owner == run]

    def of(self, run: str, item: str) -> dict[str, Any]:
        """The arrays of an item, texts as such; empty if there is none."""
        return {name: self._value(place) for name, place in self._places.get((run, item), {}).items()}

    def _value(self, place: int) -> Any:
        line = self._table.slice(place, 1)
        kind = next(name for name in line.column_names if name not in KEYS and line.column(name)[0].is_valid)
        values = line.column(kind)[0].values
        if kind == TEXT:
            return values[0].as_py()
        return values.to_numpy(zero_copy_only=False).reshape(line.column("shape")[0].as_py()).copy()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _bytes(table: Any, **options: Any) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=19, write_statistics=False, **options)
    return buffer.getvalue()


def _read(path: Path) -> Any:
    """A file's table; None where there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return None
    try:
        return pq.read_table(path, use_threads=False).combine_chunks()
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: damaged ({error}); collect it again") from error
