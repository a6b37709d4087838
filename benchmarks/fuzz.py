"""Random damage to the files that dmvi reads: fits, and data of the command line.

    python -m benchmarks.fuzz --what fits --seconds 600
    python -m benchmarks.fuzz --what data --seconds 600 --keep corpus

A damaged file has to be read, or refused with an `InputError`; any other exception, more than two seconds of
CPU time, or a request for more than 500 MiB beyond what was in use is a failure, and its file is kept. Memory
is limited by the kernel while a file is read, and what does not end is stopped. Damage goes below the
checksums too: members are changed and signed anew, as by somebody who means it.
"""

import argparse
import copy
import hashlib
import io
import json
import random
import resource
import signal
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dmvi
from benchmarks.battery import labels
from dmvi.cli._data import read_data
from dmvi.targets._rows import open_rows

SECONDS, MEBIBYTES = 2.0, 500
ENDLESS = 60.0  # CPU seconds after which reading is stopped
COMPILING = (30.0, 2000)  # the same where the guide is made anew and run, in one of so many files
ONE_IN = 40
DENSITY, DIM = labels((-6.0, 0.0, 6.0)).log_density, 3  # of the fits: a mixture in all labellings is one
ROWS = (".npy", ".parquet", ".arrow")
NASTY: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, "nan", "", "x" * 1000, [], [[]], {}, {"a": [1, {}]},
    "../../etc", "\u0000", -0.0, "inf", [None] * 5, 3.5,
]  # fmt: skip
TOKENS = [
    b"[", b"]", b"{", b"}", b",", b":", b'"', b"\n", b"\r", b"\x00", b"-", b"1e999", b"NaN", b"null",
    b"1" * 5000, b"[" * 2000, b"\xff\xfe", b"\xef\xbb\xbf", b"0x1", b"1_000", b";", b"'", b"\t",
    b"true", b"Infinity", b"PK\x03\x04",
]  # fmt: skip
DTYPES = ["<f8", "|O", "<U9", "<M8[s]", "<c16", "V8", ">f4", "|b1", "<i8", "no type"]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[place % len(data)] = rng.randrange(256)
        elif kind == 1:
            del data[place : place + rng.choice([1, 4, 100, len(data)])]
        elif kind == 2:
            data[place:place] = rng.choice(TOKENS)
        elif kind == 3:
            data[place:place] = data[place : place + rng.choice([1, 8, 200])]
        elif data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
    return bytes(data)


def resigned(content: bytes, rng: random.Random) -> bytes:
    """A fit with its manifest or an array changed, and the checksums made anew."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    if rng.random() < 0.4:
        name = rng.choice(list(manifest["arrays"]))
        entry = manifest["arrays"][name]
        members[entry["file"]] = changed_array(members[entry["file"]], rng)
        entry["sha256"] = hashlib.sha256(members[entry["file"]]).hexdigest()
    for _ in range(rng.choice([0, 1, 1, 3])):
        change(manifest, rng)
    members["manifest.json"] = json.dumps(manifest).encode()
    members["manifest.sha256"] = hashlib.sha256(members["manifest.json"]).hexdigest().encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, part in members.items():
            archive.writestr(zipfile.ZipInfo(name), part)
    return buffer.getvalue()


def change(tree: Any, rng: random.Random) -> None:
    """One value somewhere in a JSON tree replaced, taken out or renamed."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.8:
            tree = tree[key]
            continue
        kind = rng.randrange(4)
        if kind == 0:
            del tree[key]
        elif kind == 1 and isinstance(tree, dict):
            tree[str(rng.choice(NASTY))[:50]] = tree.pop(key)
        elif kind == 2 and len(keys) > 1:
            tree[key] = copy.deepcopy(tree[rng.choice(keys)])
        else:
            tree[key] = copy.deepcopy(rng.choice(NASTY))
        return


def changed_array(content: bytes, rng: random.Random) -> bytes:
    """An .npy file with other bytes, another header or other values."""
    kind = rng.randrange(3)
    if kind == 0:
        return damaged(content, rng)
    if kind == 1:
        shape = tuple(rng.choice([0, 1, 3, 20, 10**12, -1]) for _ in range(rng.randrange(4)))
        header = str({"descr": rng.choice(DTYPES), "fortran_order": rng.random() < 0.5, "shape": shape})
        text = header.encode().ljust(117) + b"\n"
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content[128:]
    array = np.atleast_1d(np.load(io.BytesIO(content)))
    with np.errstate(over="ignore"):
        others = [array[..., :0], array.ravel(), np.full_like(array, 0), array[None], array.astype("f2")]
    other = rng.choice(others)
    other = (
        np.where(np.isfinite(other), np.nan, other)
        if other.dtype.kind == "f" and rng.random() < 0.3
        else other
    )
    buffer = io.BytesIO()
    np.save(buffer, other)
    return buffer.getvalue()


def read_fit(path: Path) -> None:
    """What a stranger's file goes through first."""
    stored = dmvi.load(path)
    repr(stored)
    stored.sample()
    stored.summary()
    if zlib.crc32(path.read_bytes()) % 10 == 0:  # slower than all the rest
        stored.to_arviz()
        stored.plot_diffusion()


def read_with_model(path: Path) -> None:
    """And then with the model, which makes the guide anew."""
    posterior = dmvi.load(path, DENSITY, init=jnp.zeros(DIM))
    posterior.unconstrained(5)
    dmvi.resume(posterior, steps=1, progress=False)
    # Thousands of compiled programs would use up the memory maps that Linux gives a process.
    jax.clear_caches()


def read_any(path: Path) -> None:
    """Data of the command line; files of rows as training reads them."""
    if path.suffix not in ROWS:
        read_data(path)
        return
    rows, _ = open_rows({"y": str(path)})
    for _ in rows.blocks(1000):
        pass


def fit_seeds() -> list[bytes]:
    """A small fit, and one of a mixture of guides in all labellings."""
    fits = (
        dmvi.fit(DENSITY, init=jnp.zeros(DIM), guide=guide, steps=20, progress=False)
        for guide in ("full-rank", "auto")
    )
    with tempfile.TemporaryDirectory() as folder:
        return [posterior.save(Path(folder) / "fit.dmvi", n=20).read_bytes() for posterior in fits]


def data_seeds() -> dict[str, list[bytes]]:
    """Data files of every kind."""
    buffer, packed = io.BytesIO(), io.BytesIO()
    np.savez(buffer, y=np.arange(6.0), n=np.asarray(3), x=np.ones((2, 3), int))
    np.savez_compressed(packed, y=np.arange(6.0), flags=np.array([True, False]))
    return {
        ".json": [b'{"n": 3, "y": [1.5, 2, 3], "x": [[1, 2], [3, 4]], "flag": true}', b'{"y": [1e3, -2]}'],
        ".csv": [b"group,y\n0,1.5\n1,-2e3\n2,4\n", b"\xef\xbb\xbfa,b\r\n1,2\r\n"],
        ".npz": [buffer.getvalue(), packed.getvalue()],
    }


def rows_seeds() -> dict[str, list[bytes]]:
    """Files of rows of every kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"y": np.arange(40.0), "g": np.arange(40)})
    array, parquet, arrow = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(40.0).reshape(20, 2))
    pq.write_table(table, parquet, row_group_size=16)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    return {".npy": [array.getvalue()], ".parquet": [parquet.getvalue()], ".arrow": [arrow.getvalue()]}


def damaged_npz(content: bytes, rng: random.Random) -> bytes:
    """An .npz with one array changed and the archive whole."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    members[name] = changed_array(members[name], rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for part, value in members.items():
            archive.writestr(
                part if rng.random() < 0.95 else rng.choice(["../a.npy", "y", "\u00e9.npy"]), value
            )
    return buffer.getvalue()


def inputs(what: str, rng: random.Random) -> Callable[[], tuple[str, bytes]]:
    """Gives one damaged file after the other: its suffix and content."""
    if what == "fits":
        fits = fit_seeds()
        return lambda: (".dmvi", (damaged if rng.random() < 0.3 else resigned)(rng.choice(fits), rng))
    seeds = data_seeds() | rows_seeds()

    def one() -> tuple[str, bytes]:
        suffix = rng.choice(list(seeds))
        content = rng.choice(seeds[suffix])
        inside = suffix in (".npz", ".npy") and rng.random() < 0.6
        change = damaged if not inside else damaged_npz if suffix == ".npz" else changed_array
        return suffix, change(content, rng)

    return one


@contextmanager
def limited(seconds: float, mebibytes: int) -> Iterator[None]:
    """Memory beyond what is in use is refused by the kernel, and what does not end is stopped."""

    def stop(*_: Any) -> None:
        raise TimeoutError("did not end")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + mebibytes * 2**20, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def behind(error: BaseException) -> BaseException:
    """The first of the errors that led to this one."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def attempt(
    read: Callable[[Path], Any], path: Path, seconds: float = SECONDS, mebibytes: int = MEBIBYTES
) -> str | None:
    """How reading fails, if it does: None where the file was read or refused as it should be."""
    began = time.process_time()
    failure = None
    try:
        with limited(ENDLESS, mebibytes):
            read(path)
    except BaseException as error:
        if isinstance(behind(error), MemoryError | TimeoutError):
            failure = f"{type(behind(error)).__name__}, told as {type(error).__name__}: {str(error)[:200]}"
        elif not isinstance(error, dmvi.InputError):
            failure = f"{type(error).__name__}: {str(error)[:200]}"
    if time.process_time() - began > seconds:
        failure = failure or "took too long"
    return failure


def fuzz(what: str, seconds: float, seed: int, keep: Path | None) -> dict[str, Any]:
    """Damages and reads for so long."""
    rng = random.Random(seed)
    following = inputs(what, rng)
    read = read_fit if what == "fits" else read_any
    failures: dict[str, str] = {}
    tried = 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            suffix, content = following()
            path = Path(folder) / f"file{suffix}"
            path.write_bytes(content)
            failure = attempt(read, path)
            if failure is None and what == "fits" and tried % ONE_IN == 0:
                failure = attempt(read_with_model, path, *COMPILING)
            tried += 1
            if failure is not None and failure.split(":")[0] + failure[-40:] not in failures:
                failures[failure.split(":")[0] + failure[-40:]] = failure
                print(f"after {tried} files: {failure}", flush=True)
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{hashlib.sha256(content).hexdigest()[:12]}{suffix}").write_bytes(content)
    return {
        "what": what,
        "seconds": seconds,
        "seed": seed,
        "files": tried,
        "failures": list(failures.values()),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description="Damaged files.")
    parser.add_argument("--what", choices=["fits", "data"], required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for files that fail")
    a = parser.parse_args()
    print(json.dumps(fuzz(a.what, a.seconds, a.seed, a.keep), indent=1))


if __name__ == "__main__":
    main()
