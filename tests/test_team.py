"""What processes that make one fit together say to each other, and what each of them reads."""

import itertools

import jax
import numpy as np
import pytest

from dmvi._errors import LostProcessError
from dmvi._team import ALONE, Message, Team, _packed, _unpacked
from dmvi.targets._rows import ArrayRows


def test_a_message_arrives_as_it_was_sent():
    arrays = {
        "vector": np.array([1.5, -2.0, np.inf]),
        "number": np.array(7, np.int32),
        "flags": np.array([[True], [False]]),
        "nothing": np.zeros((0, 3), np.float32),
        "columns": np.arange(6.0).reshape(2, 3).T,
    }
    found = _unpacked(_packed(Message("word", arrays, {"steps": 3, "name": "laplace\n"})))
    assert found.word == "word"
    assert found.record == {"steps": 3, "name": "laplace\n"}
    assert list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)


def test_a_process_alone_hears_itself():
    message = Message("word")
    assert ALONE.hear(message) is message
    np.testing.assert_array_equal(ALONE.total(np.array([1.0, 2.0])), [1.0, 2.0])


@pytest.mark.parametrize("error", [ValueError, jax.errors.JaxRuntimeError])
def test_a_broken_connection_says_what_to_do(error):
    with pytest.raises(LostProcessError, match=r"process 1 of 3 has lost another process.*checkpoint"):  # noqa: SIM117
        with Team(1, 3).together():
            raise error("UNKNOWN: Gloo AllGather failed: Connection closed by peer")


def test_other_errors_stay_what_they_are():
    with pytest.raises(ValueError, match="shapes"), Team(1, 3).together():
        raise ValueError("shapes do not fit")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_shares_of_a_pass_are_all_rows_once(size):
    rows = ArrayRows({"i": np.arange(100)})
    read = [block["i"] for rank in range(size) for block in rows.blocks(9, (rank, size))]
    np.testing.assert_array_equal(np.concatenate(read), np.arange(100))


@pytest.mark.parametrize("count", [40, 5, 37])
def test_the_parts_of_a_batch_make_up_the_batch(count):
    rows = ArrayRows({"i": np.arange(50)})
    whole = rows.draw(np.random.default_rng(3), count)["i"]
    cuts = [0, count // 3, count // 2, count]
    parts = [
        rows.draw(np.random.default_rng(3), count, part=(begin, end))["i"]
        for begin, end in itertools.pairwise(cuts)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
