"""The description of the machine, and the files of results."""

import json
import os

import pytest

from bench import machine, results

CORES = sorted(os.sched_getaffinity(0))  # before a test binds this thread


@pytest.mark.skipif(len(machine.CORES) < 2, reason="needs two cores")
def test_cores_of_the_machine_are_those_of_the_process_where_a_lane_has_bound_its_thread():
    have = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, CORES[:1])
        assert machine.describe()["cores"] == len(CORES) and machine.cores_of(2) == CORES[:2]
    finally:
        os.sched_setaffinity(0, have)


def test_results_name_the_machine_but_not_its_owner(tmp_path):
    file = tmp_path / "deep" / "rows.json"
    results.write(str(file), [{"a": 1}], more=2)
    read = json.loads(file.read_text())
    assert read["rows"] == [{"a": 1}] and read["more"] == 2 and read["machine"]["isa"]
    assert os.uname().nodename not in json.dumps(read["machine"])
    assert results.table([{"a": 0.12345, "b": {"c": 2}}, {"a": None}], ["a", "b"]).splitlines() == [
        "| a     | b   |",
        "| ----- | --- |",
        "| 0.123 | c 2 |",
        "|       |     |",
    ]
