"""Configs: sizes of the paper, what is refused, models and recipes by name."""

import json
import pathlib

import pytest

from albert_tf import config
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.config import AlbertConfig
from albert_tf.console import settings
from albert_tf.conversion import load_config
from albert_tf.inspection import costs
from albert_tf.model.albert import AlbertModel
from tests.kit import goldens, tiny

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.glob("*.json"))
# Rows of the paper's tables 1 and 2; the counts are at V = 30000.
RELEASED = {
    "base": (12, 768, 3072, 12, 11_683_584),
    "large": (24, 1024, 4096, 16, 17_683_968),
    "xlarge": (24, 2048, 8192, 16, 58_724_864),
    "xxlarge": (12, 4096, 16384, 64, 222_595_584),
}
SMALL = {"vocab_size": 31, "hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 7}


def read(name: str) -> AlbertConfig:
    return AlbertConfig.from_json_file(CONFIGS / f"{name}.json")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_config_loads(file):
    config = AlbertConfig.from_json_file(str(file))
    assert json.loads(file.read_text()).items() >= config.to_dict().items()


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("size", RELEASED)
def test_released_sizes(size, version):
    """tests/inspection/test_costs.py tests that built models have the parameters counted here."""
    config = read(f"albert_{size}_{version}")
    found = (
        *(config.num_hidden_layers, config.hidden_size, config.intermediate_size),
        *(config.num_attention_heads, costs.count_encoder(config)),
    )
    assert found == RELEASED[size]
    assert (config.embedding_size, config.vocab_size) == (128, 30000)
    rate = 0.1 if version == "v1" and size != "xxlarge" else 0
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == rate


@pytest.mark.parametrize(
    ("sharing", "attention", "ffn"),
    [
        ("all", [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]),
        ("attention", [0, 0, 0, 1, 1], [0, 1, 2, 3, 4]),
        ("ffn", [0, 1, 2, 3, 4], [0, 0, 0, 1, 1]),
        ("none", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
    ],
)
def test_sharing_decides_which_sublayer_serves_a_layer(sharing, attention, ffn):
    groups = {"num_hidden_layers": 5, "num_hidden_groups": 2}
    config = AlbertConfig(**SMALL, **groups, parameter_sharing=sharing)
    assert [config.attention_group(layer) for layer in range(5)] == attention
    assert [config.ffn_group(layer) for layer in range(5)] == ffn
    assert config.num_attention_groups == max(attention) + 1
    assert config.num_ffn_groups == max(ffn) + 1


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_groups_are_the_releases(variant):
    expected = json.loads((goldens.FOLDER / variant / "variables.json").read_text())
    config = goldens.config(variant)
    groups = [config.attention_group(layer) for layer in range(config.num_hidden_layers)]
    assert groups == expected["layer_to_group"]
    # Rounding of a floating-point product puts layer 15 into group 14.
    config = AlbertConfig(**SMALL, num_hidden_layers=22, num_hidden_groups=22)
    groups = [config.attention_group(layer) for layer in range(22)]
    assert groups == [14 if layer == 15 else layer for layer in range(22)]


def test_every_key_that_the_release_wrote_is_accepted_and_others_have_its_defaults():
    """`layers_to_keep` occurs in the configs of xxlarge and of the Chinese models."""
    assert AlbertConfig.from_dict({"vocab_size": 30000}) == read("albert_xxlarge_v2")
    legacy = {"net_structure_type": 0, "layers_to_keep": [], "gap_size": 0, "num_memory_blocks": 0}
    legacy |= {"pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3}
    legacy |= {"pooler_size_per_head": 128, "pooler_type": "first_token_transform"}
    legacy |= {"directionality": "bidi", "ln_type": "postln"}
    assert AlbertConfig.from_dict({"vocab_size": 21128, **legacy}) == AlbertConfig(21128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_sise": 15}, r"unknown ALBERT config keys \['hidden_sise'\]"),
        ({"hidden_size": 16}, r"hidden_size must be a multiple of num_attention_heads \(3\)"),
        ({"num_hidden_groups": 13}, r"num_hidden_groups must be at most num_hidden_layers \(12\)"),
        ({"hidden_act": "swish"}, r"hidden_act must be one of .*'gelu'.*, not 'swish'"),
        ({"hidden_dropout_prob": 1}, r"hidden_dropout_prob must be a probability"),
        ({"hidden_dropout_prob": float("nan")}, r"hidden_dropout_prob must be a finite number"),
        ({"initializer_range": 0}, r"initializer_range must be > 0"),
        ({"initializer_range": "0.02"}, r"initializer_range must be a finite number, not '0.02'"),
        ({"hidden_size": 10**12}, r"hidden_size must be below 2\*\*31, not 1000000000000"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers must be a positive integer, not 0"),
        ({"vocab_size": True}, r"vocab_size must be a positive integer, not True"),
        ({"parameter_sharing": "some"}, r"parameter_sharing must be one of .*, not 'some'"),
        ({"net_structure_type": 1}, r"net_structure_type must be 0 or left out, not 1"),
        ({"ln_type": "preln"}, "ln_type must be 'postln' or left out, not 'preln'"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        AlbertConfig.from_dict({**SMALL, **change})


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, " does not exist"),
        (b"{", " is not JSON"),
        (b"[]", " must contain a JSON object"),
        (b'{"vocab": 5}', r": unknown ALBERT config keys \['vocab'\]"),
        (b'{"hidden_size": 15}', ": ALBERT config key vocab_size is missing"),
        (b"\xff\xfe{", ": not UTF-8"),
    ],
)
def test_errors_name_the_file(content, fault, tmp_path):
    file = tmp_path / "albert_config.json"
    if content is not None:
        file.write_bytes(content)
    error = ValueError if content else FileNotFoundError
    with pytest.raises(error, match=f"albert_config.json{fault}"):
        AlbertConfig.from_json_file(file)


@pytest.mark.parametrize("sharing", ["all", "ffn"])
def test_json_round_trip(tmp_path, sharing):
    config = AlbertConfig(**SMALL, hidden_dropout_prob=0.25, parameter_sharing=sharing)
    file = tmp_path / "albert_config.json"
    file.write_text(config.to_json())
    assert AlbertConfig.from_json_file(file) == config
    assert ("parameter_sharing" in json.loads(config.to_json())) == (sharing != "all")


def parsed(script: str, *arguments: str) -> settings.Settings:
    cls = PretrainingSettings if script == "pretraining" else FinetuningSettings
    return settings.parse(cls, ["script", "--output_dir=out", *arguments])


def given(found: settings.Settings) -> dict[str, object]:
    """Returns the values of all flags that were given, except that of the recipe."""
    return {name: getattr(found, name) for name in found.given if name != "recipe"}


def test_names_are_those_of_the_files_in_a_clone():
    models = {path.stem: path.read_bytes() for path in CONFIGS.glob("*.json")}
    assert len(models) == 13
    found = config.shipped_models()
    assert {name: pathlib.Path(path).read_bytes() for name, path in found.items()} == models
    flag_files = {path.stem for path in (CONFIGS / "recipes").glob("*.flags")}
    assert set(config.shipped_recipes("finetuning")) == flag_files
    assert "paper" in config.shipped_recipes("pretraining")


def test_a_config_by_name(tmp_path, monkeypatch):
    expected = read("albert_large_v2")
    monkeypatch.chdir(tmp_path)
    for name in ("albert_large_v2", pathlib.Path("albert_large_v2")):
        assert AlbertConfig.from_json_file(name) == expected
    with pytest.raises(FileNotFoundError, match="^ALBERT config large .*: known names are"):
        AlbertConfig.from_json_file("large")
    with pytest.raises(FileNotFoundError, match=r"^ALBERT config large\.json does not exist$"):
        AlbertConfig.from_json_file("large.json")


def test_load_config_takes_the_names_that_models_take(tmp_path, monkeypatch):
    """Weights with that name take precedence; a model's name alone does not stand for weights."""
    monkeypatch.chdir(tmp_path)
    for name in config.shipped_models():
        assert load_config(name) == AlbertConfig.from_json_file(name)
    with pytest.raises(FileNotFoundError, match="^there is no checkpoint albert_xxlarge_v2: "):
        AlbertModel.from_weights("albert_xxlarge_v2")
    (tmp_path / "albert_tiny").mkdir()
    own = tiny.config()
    AlbertModel(own).save("albert_tiny/model.keras")
    assert load_config(pathlib.Path("albert_tiny")) == own


def test_a_file_that_exists_wins_but_not_a_directory(tmp_path, monkeypatch):
    """A run may have --albert_config_file=albert_tiny --output_dir=albert_tiny."""
    expected = AlbertConfig.from_json_file("albert_tiny")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "albert_tiny").mkdir()
    assert AlbertConfig.from_json_file("albert_tiny") == expected
    (tmp_path / "albert_large_v2").write_text(AlbertConfig(31).to_json())
    assert AlbertConfig.from_json_file("albert_large_v2").vocab_size == 31


@pytest.mark.parametrize("argument", ["--recipe=rte", "-recipe rte", "--flagfile=own.flags"])
def test_a_recipe_is_its_flag_file(tmp_path, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.flags").write_text("# Mine.\n--recipe=rte\n")
    expected = given(parsed("finetuning", f"--flagfile={CONFIGS}/recipes/rte.flags"))
    assert expected["task_name"] == "rte" and len(expected) > 9
    assert given(parsed("finetuning", *argument.split())) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_the_command_line_wins(order):
    arguments = ["--recipe=rte", "--learning_rate=0.5", "--nodo_predict"][::order]
    values = parsed("finetuning", *arguments)
    assert (values.learning_rate, values.do_predict, values.train_step) == (0.5, False, 800)


MNLI_EPOCHS = ("mnli", "num_train_epochs", 3, "train_step")
MNLI_WARMUP = ("mnli", "warmup_proportion", 0.1, "warmup_step")
TNEWS = ("tnews", "train_step", 1000, "num_train_epochs")


@pytest.mark.parametrize(("recipe", "flag", "value", "other"), [MNLI_EPOCHS, MNLI_WARMUP, TNEWS])
@pytest.mark.parametrize("order", [1, -1])
def test_a_flag_that_says_the_same_in_another_unit_wins(recipe, flag, value, other, order):
    assert other in parsed("finetuning", f"--recipe={recipe}").given
    values = parsed("finetuning", *[f"--recipe={recipe}", f"--{flag}={value}"][::order])
    assert getattr(values, flag) == value and other not in values.given
    assert values.learning_rate == (2e-5 if recipe == "tnews" else 3e-5)

    arguments = ["--recipe=paper", "--input_file=records", "--num_train_steps=7"]
    found = parsed("pretraining", *arguments)
    assert (found.train_batch_size, found.learning_rate) == (4096, 0.00176)
    assert (found.max_seq_length, found.num_train_steps) == (512, 7)
    assert {"train_batch_size", "num_train_steps"} < found.given


def test_weights_replace_those_that_a_recipe_begins_with():
    arguments = ["--recipe=fast", "--input_file=records"]
    assert parsed("pretraining", *arguments).nearby_attention
    found = parsed("pretraining", *arguments, "--init_checkpoint=weights")
    assert not found.nearby_attention and found.optimizer == "muon"


@pytest.mark.parametrize("recipe", ["colla", "../recipes/cola", "", "cola"])
def test_an_unknown_recipe_is_one_line_that_lists_the_known(recipe):
    script = "pretraining" if recipe == "cola" else "finetuning"
    known = "|".join(config.shipped_recipes(script))
    with pytest.raises(SystemExit) as ended:
        parsed(script, f"--recipe={recipe}")
    assert f"flag --recipe={recipe}: value should be one of <{known}>" in ended.value.code
