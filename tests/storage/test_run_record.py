"""run.json: written whole, found beside weights, refused if it is damaged."""

import pytest

from albert_tf.storage.run_record import RunRecord, digest, find_run


def test_a_record_is_found_in_a_run_and_beside_its_weights(tmp_path):
    assert find_run(str(tmp_path)) is None
    run = RunRecord({"rate": 0.1, "names": ["a"]}, {"hidden_size": 15}, {"train": "1"})
    run.write(str(tmp_path))
    assert find_run(str(tmp_path)) == find_run(str(tmp_path / "model.ckpt-7")) == run
    assert {"python", "keras", "tensorflow"} <= set(run.versions)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"settings": 1, "config": {}}'])
def test_a_damaged_record_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match="run.json"):
        find_run(str(tmp_path))


def test_a_digest_is_of_the_content():
    assert digest({"a": [1, "\udc80"], "b": None}) == digest({"b": None, "a": [1, "\udc80"]})
    assert digest({"a": 1}) != digest({"a": 2})
