"""albert-inspect attention against a model in NumPy.

Not tested here: whether the figure is drawn well.
"""

import dataclasses

import numpy as np

import albert_tf
from albert_tf.cli import inspect as commands
from albert_tf.inspection import attention
from tests.inspection import numpy_albert
from tests.kit import tolerances
from tests.kit.tiny import randomise, run_main


def test_probabilities_are_the_formula(encoder, features):
    _, expected = numpy_albert.run(encoder, features, layers=5)
    actual = attention.probabilities(encoder, features)
    assert actual.shape == (5, 2, 3, 13, 13)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.INSPECTED)
    assert not actual[:, 1, :, :, 7:].any()  # Padding.


def test_each_layer_has_the_weights_of_its_group(config, features):
    """With zero keys, a position attends to all evenly: those of layers 2 and 4 are zeroed."""
    model = randomise(albert_tf.AlbertModel(dataclasses.replace(config, num_hidden_groups=5)))
    for number in (1, 3):
        kernel = model.encoder.attention[number].key_kernel
        kernel.assign(np.zeros(kernel.shape))
    found = attention.probabilities(model, features)[:, 0]
    even = [np.allclose(layer, 1 / 13) for layer in found]
    assert even == [False, True, False, True, False]


def test_the_command_writes_probabilities_and_figure(stored, tmp_path, caplog):
    out = tmp_path / "out"
    texts = ["--text=A small day", "--text_pair=Two."]
    run_main(commands.attention, [f"--model={stored}", f"--output_dir={out}", *texts])
    with np.load(out / "attention.npz") as found:
        pieces, probabilities = found["pieces"], found["probabilities"]
    assert pieces[0] == "[CLS]" and list(pieces).count("[SEP]") == 2
    assert probabilities.shape == (5, 3, len(pieces), len(pieces))
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=tolerances.INSPECTED)
    assert (out / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert f"5 layers, 3 heads, {len(pieces)} pieces" in caplog.text
    assert f"{out}: attention.npz, attention.png" in caplog.text
    model = albert_tf.AlbertModel.from_weights(stored)
    features = albert_tf.Preprocessor.from_weights(stored)(["A small day"], ["Two."])
    _, expected = numpy_albert.run(model, features, layers=5)
    np.testing.assert_allclose(probabilities, expected[:, 0], rtol=0, atol=tolerances.INSPECTED)


def test_the_scale_ends_at_the_largest_probability(monkeypatch):
    """Tested on the figure, because the pixels of a file tell little about its scale."""
    monkeypatch.setattr(attention.figures, "png", lambda figure: figure)
    found = np.full((2, 3, 5, 5), 0.1)
    found[1, 0, 2, 4] = 0.3
    figure = attention.draw("abcde", found)
    limits = [image.get_clim() for axes in figure.axes for image in axes.get_images()]
    assert limits == [(0, 0.3)] * 6
