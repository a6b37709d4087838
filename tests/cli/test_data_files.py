"""Data files: what is read, and what is refused with the place named."""

import numpy as np
import pytest

from dmvi._errors import InputError
from dmvi.cli._data import name_data, read_data


def test_json_numbers_stay_numbers_and_lists_become_arrays(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('{"n": 3, "scale": 0.5, "flag": true, "y": [1, 2, 3], "x": [[1.5, 2], [3, 4]]}')
    data = read_data(path)
    assert (data["n"], data["scale"], data["flag"]) == (3, 0.5, True)
    assert type(data["n"]) is int
    assert data["y"].dtype.kind == "i"
    np.testing.assert_array_equal(data["x"], [[1.5, 2.0], [3.0, 4.0]])


def test_npz_scalars_become_numbers(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, n=np.asarray(3), y=np.arange(4.0))
    data = read_data(path)
    assert type(data["n"]) is int
    np.testing.assert_array_equal(data["y"], np.arange(4.0))


def test_csv_columns_become_arrays(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("\ufeffgroup, y\n0,1.5\n\n1,-2e3\n", encoding="utf-8")
    data = read_data(path)
    assert data["group"].dtype.kind == "i"
    np.testing.assert_array_equal(data["group"], [0, 1])
    np.testing.assert_array_equal(data["y"], [1.5, -2000.0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"y": [1, 2', ("not valid JSON", "line 1")),
        ("[1, 2]", ("object of arguments by name", "list")),
        ('{"y": [1, [2, 3]]}', ("'y'", "equally long")),
        ('{"y": [1, null]}', ("'y'", "null")),
        ('{"y": "text"}', ("'y'", "text")),
        ('{"y": {"a": 1}}', ("'y'",)),
        ('{"y": [100000000000000000000000]}', ("'y'",)),
    ],
)
def test_bad_json_is_refused(tmp_path, text, words):
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_data(path)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("column names",)),
        ("y,x\n", ("at least one line",)),
        ("1.0,2.0\n3.0,4.0\n", ("name its columns",)),
        ("y,y\n1,2\n", ("name of its own",)),
        ("y,\n1,2\n", ("name its columns",)),
        ("y,x\n1,2\n3\n", ("row 2", "expected 2 values")),
        ("y,x\n1,2\n3,\n", ("row 2", "'x'")),
        ("y;x\n1,5;2\n", ("expected 1 values", "row 1")),
        ("y\nfour\n", ("row 1", "'four'")),
    ],
)
def test_bad_csv_is_refused_with_row_and_column(tmp_path, text, words):
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_data(path)
    assert all(word in str(error.value) for word in words), error.value


def test_npz_with_objects_is_refused_unread(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, y=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="never unpickles"):
        read_data(path)


def test_npz_with_text_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, names=np.array(["a", "b"]))
    with pytest.raises(InputError, match="'names'"):
        read_data(path)


def test_npz_that_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(InputError, match="archive"):
        read_data(path)


def test_npz_that_is_a_single_array_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    with path.open("wb") as file:
        np.save(file, np.arange(3.0))
    with pytest.raises(InputError, match="single array without a name; write"):
        read_data(path)


def test_npz_that_is_something_else_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"hello")
    with pytest.raises(InputError, match=r"numpy\.savez"):
        read_data(path)


def test_unknown_endings_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.json, \.npz or \.csv"):
        read_data(tmp_path / "data.xlsx")
    with pytest.raises(InputError, match="no data file"):
        read_data(tmp_path / "data.json")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="no data file"):
        read_data(tmp_path / "folder.csv")


def test_text_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "data.json"
    path.write_bytes('{"größe": 1}'.encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        read_data(path)


def test_rows_for_batches_may_be_named_instead_of_held(tmp_path):
    (tmp_path / "files.json").write_text('{"x": "x.npy", "groups": 3, "prior": [1.0, 2.0]}')
    found = name_data(tmp_path / "files.json")
    assert isinstance(found, dict)
    assert found["x"] == str(tmp_path / "x.npy")
    assert found["groups"] == 3
    np.testing.assert_array_equal(found["prior"], [1.0, 2.0])
    assert name_data(tmp_path / "table.parquet") == str(tmp_path / "table.parquet")
    with pytest.raises(InputError, match="to be a number or a list of numbers"):
        read_data(tmp_path / "files.json")
