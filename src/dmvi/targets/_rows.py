"""Rows of data that need not fit in memory: arrays, .npy files, Parquet and Arrow tables."""

import abc
import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dmvi._errors import InputError, asks_too_much
from dmvi.targets._arguments import in_default_width

Block = dict[str, np.ndarray]
TABLES = (".parquet", ".pq", ".arrow", ".feather")
PIECES = 16  # places in the data from which a batch of one array is put together
Range = tuple[int, int]
Share = tuple[int, int]  # number of a process, and how many share the work
ALL = (0, 1)
LOOKED_AT = 2**15  # rows at a time


Item = TypeVar("Item")


def prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made while the one before is worked on."""
    nothing = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, nothing)
        while (item := coming.result()) is not nothing:
            coming = pool.submit(next, items, nothing)
            yield item  # pyright: ignore[reportReturnType]


class Rows(abc.ABC):
    """Columns of equal length, read in blocks.

    Attributes:
        count: number of rows N.
    """

    count: int

    @abc.abstractmethod
    def draw(
        self,
        rng: np.random.Generator,
        size: int,
        place: np.random.Generator | None = None,
        part: Range | None = None,
    ) -> Block:
        """`size` rows, every row with probability size / N; neighbours in the data may come together.

        Args:
            rng: chooses the rows.
            size: how many.
            place: chooses the group of rows of a table, of which only one is held; None leaves it to `rng`.
            part: which of these rows are read and given back, from one number up to another; None for all.
        """

    @abc.abstractmethod
    def blocks(self, size: int, share: Share = ALL) -> Iterator[Block]:
        """A process's share of the rows, once, in order, at most `size` at a time."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """What tells these data from others: of files their names, sizes and dates."""


class ArrayRows(Rows):
    """Arrays in memory and .npy files, which are read piece by piece and never mapped."""

    def __init__(self, columns: Mapping[str, "np.ndarray | NpyColumn"]):
        self._columns = dict(columns)
        self.count = next(iter(columns.values())).shape[0]

    def draw(self, rng, size, place=None, part=None):
        begin, end = part or (0, size)
        pieces = min(PIECES, size)
        lengths = np.full(pieces, size // pieces) + (np.arange(pieces) < size % pieces)
        starts = rng.integers(0, self.count, pieces)
        first = np.cumsum(lengths) - lengths  # number in the batch of a piece's first row
        low, high = np.clip(begin - first, 0, lengths), np.clip(end - first, 0, lengths)
        wanted = [
            (int(s + a) % self.count, int(b - a)) for s, a, b in zip(starts, low, high, strict=True) if b > a
        ]
        return {
            name: np.concatenate([_circular(column, start, count) for start, count in wanted])
            for name, column in self._columns.items()
        }

    def blocks(self, size, share=ALL):
        begin, end = (self.count * number // share[1] for number in (share[0], share[0] + 1))
        for start in range(begin, end, size):
            stop = min(start + size, end)
            yield {name: _as_rows(column[start:stop]) for name, column in self._columns.items()}

    def fingerprint(self):
        found = hashlib.sha256()
        for name, column in sorted(self._columns.items()):
            told = column.fingerprint() if isinstance(column, NpyColumn) else _digest(column)
            found.update(f"{name} {column.shape} {column.dtype} {told}".encode())
        return found.hexdigest()


class NpyColumn:
    """A .npy file; slices are read from it, not mapped, so that they are gone when they are forgotten."""

    def __init__(self, path: Path):
        self._path = path
        try:
            self._seen = _file_fingerprint(path)
            _check_header(path)
            with np.errstate(over="ignore"):  # of a shape beyond any memory, which is refused in words
                mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        except MemoryError as error:
            raise InputError(asks_too_much(path)) from error
        except Exception as error:  # a parser of bytes from anywhere can fail in any way
            raise InputError(f"{str(path)!r} is no readable .npy file: {error}.") from error
        if not isinstance(mapped, np.memmap) or mapped.ndim == 0 or np.isfortran(mapped):
            raise InputError(f"{str(path)!r} must hold one array with rows, stored row by row (C order).")
        if mapped.size == 0:
            raise InputError(f"{str(path)!r} holds no numbers: its shape is {mapped.shape}.")
        self.shape, self.dtype = mapped.shape, mapped.dtype
        self._offset = mapped.offset
        self._row = mapped.dtype.itemsize * int(np.prod(mapped.shape[1:], dtype=int))

    def __getitem__(self, index: slice) -> np.ndarray:
        start, stop, _ = index.indices(self.shape[0])
        _check_unchanged(self._path, self._seen)
        with self._path.open("rb") as file:
            file.seek(self._offset + start * self._row)
            read = np.fromfile(file, self.dtype, max(stop - start, 0) * self._row // self.dtype.itemsize)
        return read.reshape(-1, *self.shape[1:])

    def fingerprint(self) -> str:
        """Its name, size and date."""
        return self._seen


class TableRows(Rows):
    """A Parquet or Arrow file, read group by group of its rows."""

    def __init__(self, path: Path):
        self._path, self._seen = path, _file_fingerprint(path)
        self._groups, self._sizes = _open_table(path)
        self.count = int(sum(self._sizes))
        if self.count == 0:
            raise InputError(f"{str(path)!r} holds no rows.")
        self._held: tuple[int, Rows] | None = None

    def draw(self, rng, size, place=None, part=None):
        shares = np.array(self._sizes) / self.count
        group = int((place or rng).choice(len(self._sizes), p=shares))
        if self._held is None or self._held[0] != group:
            self._held = (group, ArrayRows(self._read(group)))
        return self._held[1].draw(rng, size, part=part)

    def blocks(self, size, share=ALL):
        for group in range(share[0], len(self._sizes), share[1]):
            yield from ArrayRows(self._read(group)).blocks(size)

    def _read(self, group: int) -> Block:
        _check_unchanged(self._path, self._seen)
        with _readable(self._path):
            columns = self._groups(group)
        if not columns:
            raise InputError(f"{str(self._path)!r} holds no columns.")
        return {name: _as_rows(values) for name, values in columns.items()}

    def fingerprint(self):
        return self._seen


def open_rows(data: Mapping[str, Any] | str | Path) -> tuple[Rows, dict[str, Any]]:
    """The rows among a model's arguments, and the arguments that are the same for all rows.

    Arrays of the greatest length are rows; everything else belongs to all of them.

    Raises:
        InputError: if there are no rows, or a file cannot be read.
    """
    if isinstance(data, str | Path):
        return TableRows(_table_path(Path(data))), {}
    values = {name: _opened(name, value) for name, value in data.items()}
    tables = {name: value for name, value in values.items() if isinstance(value, TableRows)}
    if tables:
        (table,) = tables.values() if len(tables) == 1 else (None,)
        if table is None:
            raise InputError("data can name one table; put its columns into one file.")
        return table, {name: value for name, value in values.items() if name not in tables}
    lengths = {name: v.shape[0] for name, v in values.items() if _has_rows(v)}
    if not lengths:
        raise InputError("batch_size needs data with rows: arrays, .npy files or a Parquet or Arrow file.")
    longest = max(lengths.values())
    rows = {name: values[name] for name, length in lengths.items() if length == longest}
    return ArrayRows(rows), {name: value for name, value in values.items() if name not in rows}


def first_not_finite(rows: Rows) -> str | None:
    """Where the first NaN or infinite number stands, in words; None where there is none."""
    begin = 0
    for block in rows.blocks(LOOKED_AT):
        for name, values in block.items():
            wrong = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if wrong.any():
                return f"{name!r} in row {begin + int(np.argmax(wrong)):,}"
        begin += len(next(iter(block.values())))
    return None


def _opened(name: str, value: Any) -> Any:
    if isinstance(value, str | Path):
        path = Path(value)
        if path.suffix == ".npy":
            return NpyColumn(path)
        return TableRows(_table_path(path)) if path.suffix in TABLES else value
    if isinstance(value, np.memmap) and value.filename is not None and value.flags.c_contiguous:
        whole = Path(str(value.filename))
        column = NpyColumn(whole) if whole.suffix == ".npy" else None
        return column if column is not None and column.shape == value.shape else np.asarray(value)
    value = getattr(value, "to_numpy", lambda: value)()
    return np.asarray(value) if isinstance(value, list) else value


def _has_rows(value: Any) -> bool:
    return isinstance(value, NpyColumn) or (getattr(value, "ndim", 0) > 0 and hasattr(value, "shape"))


def _table_path(path: Path) -> Path:
    if path.suffix not in TABLES or not path.exists():
        raise InputError(f"data names {str(path)!r}, which is no file ending in {', '.join(TABLES)}.")
    return path


def _open_table(path: Path) -> tuple[Any, list[int]]:
    """A function from a group's number to its columns, and the sizes of the groups."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        error.add_note("Tables need pyarrow: pip install 'dmvi[arrow]'.")
        raise
    with _readable(path):
        if path.suffix in (".parquet", ".pq"):
            file = pq.ParquetFile(path)
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            return lambda group: _columns(file.read_row_group(group)), sizes
        reader = pa.ipc.open_file(pa.OSFile(str(path)))
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        return lambda group: _columns(pa.Table.from_batches([reader.get_batch(group)])), sizes


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever a reader of tables says of a file that is none, or is damaged, as a mistake in the input."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(asks_too_much(path)) from error
    except Exception as error:  # a parser of bytes from anywhere can fail in any way
        raise InputError(f"{str(path)!r} is no readable table: {error}.") from error


def _columns(table: Any) -> Block:
    """Columns of a table as arrays; lists of a fixed length become a second axis."""
    found = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        width = getattr(column.type, "list_size", None)
        values = column.flatten() if width else column
        array = values.to_numpy(zero_copy_only=False)
        found[name] = array.reshape(-1, width) if width else array
    return found


def _circular(column: Any, start: int, size: int) -> np.ndarray:
    """`size` rows from `start` on, beginning again at the first after the last."""
    count = column.shape[0]
    parts = []
    while size > 0:
        part = _as_rows(column[start : min(start + size, count)])
        parts.append(part)
        size, start = size - len(part), 0
    return np.concatenate(parts)


def _as_rows(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(f"rows have to hold numbers, got an array of {array.dtype}.")
    return in_default_width("a column of rows", array)


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).tobytes()).hexdigest()


def _file_fingerprint(path: Path) -> str:
    stat = path.stat()
    return f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"


def _check_header(path: Path) -> None:
    """NumPy makes room for as long a header as the file says it has, which may be gigabytes."""
    with path.open("rb") as file:
        magic = file.read(np.lib.format.MAGIC_LEN)
        length = int.from_bytes(file.read(2 if magic[-2:-1] == b"\x01" else 4), "little")
    if magic.startswith(np.lib.format.MAGIC_PREFIX) and length > path.stat().st_size:
        raise ValueError("its header is longer than the file")


def _check_unchanged(path: Path, seen: str) -> None:
    """Rows of two files mixed would be a posterior of neither."""
    try:
        now = _file_fingerprint(path)
    except OSError as error:
        raise InputError(
            f"the data file {str(path)!r} is gone ({error.strerror}). Put it back and fit again; with a "
            "checkpoint the same call goes on."
        ) from error
    if now != seen:
        raise InputError(
            f"the data file {str(path)!r} has changed while it was being read. Fit again, from a copy that "
            "nobody writes to."
        )
