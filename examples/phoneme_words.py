"""Pre-trains a phoneme encoder as PL-BERT does: it predicts masked phonemes, and each one's word.

    python examples/phonemes.py --voice=es --num_words=30000 --output_dir=words book.txt more/*.txt
    python examples/phoneme_words.py --data_dir=words --output_dir=run --num_train_steps=10000

--init_checkpoint continues from a file of this script's. examples/plbert_checkpoint.py converts
from and to checkpoints of PL-BERT's trainer, which StyleTTS2 reads. See docs/speech.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from collections.abc import Sequence

import keras
import numpy as np
import safetensors.numpy

from albert_tf import AlbertConfig, AlbertModel
from albert_tf.conversion import loading, names
from albert_tf.storage import files
from albert_tf.training.optimizers import create_optimizer
from phonemes import SPACE, SYMBOLS

# A word is chosen with probability 0.15; 0.8 of the chosen are masked, 0.1 get random phonemes.
# Source: dataloader.py and Configs/config.yml of github.com/yl4579/PL-BERT.
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
HEADS = {"phonemes": "mask_predictor", "words": "word_predictor"}
# The optimizer's moments: torch's names -> albert_tf's.
MOMENTS = {"exp_avg": "adam_m", "exp_avg_sq": "adam_v"}
_IDS = {symbol: i for i, symbol in enumerate(SYMBOLS)}
_TO_HUGGING_FACE = names.Renaming(names.HUGGING_FACE_NAMES)


class Documents(keras.utils.PyDataset):
    """Batches of documents, as a function of the seed and the step.

    A batch is a triple of dictionaries: the encoder's inputs `<int32>[B, S]`; the `phonemes` and
    `words` to predict, likewise; and the weights of positions in both losses, `<float32>[B, S]`.
    They average a document's loss over its positions (words) or those of chosen words (phonemes).
    The words' loss is the mean over documents; the phonemes', as in PL-BERT, is the sum divided by
    1 + the number of documents with a chosen word, or with `is_exact` by that number alone.
    """

    def __init__(
        self,
        path: os.PathLike[str],
        space: int,
        batch_size: int,
        length: int,
        seed: int,
        is_exact: bool = False,
    ) -> None:
        super().__init__()
        with open(path, encoding="utf-8") as file:
            self._documents = [encode(**json.loads(line), space=space) for line in file]
        self._size, self._length, self._seed = batch_size, length, seed
        self._is_exact = is_exact
        self.steps = range(len(self._documents) // batch_size)  # An epoch.
        if not self.steps:
            raise SystemExit(
                f"{path}: {len(self._documents)} documents are no batch of {batch_size}: add text, "
                "or lower --train_batch_size"
            )
        self._batches = len(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], ...]:
        step = self.steps[index]
        epoch, place = divmod(step, self._batches)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._documents))
        rng = np.random.default_rng([self._seed, epoch, place])
        chosen = order[place * self._size : (place + 1) * self._size]
        rows = [mask_words(*self._documents[i], self._length, rng) for i in chosen]
        return self._batch(rows)

    def _batch(self, rows: Sequence[np.ndarray]) -> tuple[dict[str, np.ndarray], ...]:
        # Keras infers the shape of all batches from the first two, so all are padded to one length.
        batch = np.zeros((4, len(rows), self._length), np.int32)
        mask = np.zeros(batch.shape[1:], np.int32)
        for i, row in enumerate(rows):
            batch[:, i, : row.shape[1]] = row
            mask[i, : row.shape[1]] = 1
        given, symbols, words, chosen = batch
        counts = chosen.sum(axis=1, keepdims=True)
        documents = np.count_nonzero(counts) + (not self._is_exact)
        weights = {
            "phonemes": chosen / np.maximum(1, counts * documents),
            "words": mask / mask.sum(axis=1, keepdims=True) / len(rows),
        }
        return (
            {"input_ids": given, "input_mask": mask},
            {"phonemes": symbols, "words": words},
            {head: weight.astype(np.float32) for head, weight in weights.items()},
        )


def encode(
    phonemes: Sequence[str], input_ids: Sequence[int], space: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns each symbol, its word's id, and its word's number in the document: `<int>[N]`.

    A space follows each word; in its place the id is `space`, and the number -1.
    """
    symbols = [_IDS.get(char, _IDS["U"]) for word in phonemes for char in f"{word} "]
    lengths = [len(word) + 1 for word in phonemes]
    ends = np.cumsum(lengths) - 1
    words, numbers = np.repeat(input_ids, lengths), np.repeat(np.arange(len(lengths)), lengths)
    words[ends], numbers[ends] = space, -1
    return np.array(symbols), words, numbers


def mask_words(
    symbols: np.ndarray,
    words: np.ndarray,
    numbers: np.ndarray,
    length: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Masks whole words in the output of `encode`, and cuts out `length` symbols at random.

    Returns:
      Masked and original symbols, ids of words, whether a word was chosen: `<int>[4, S]`.
    """
    # One draw per word decides about all of its symbols; spaces are never masked.
    in_word = numbers >= 0
    draw = rng.random(numbers.max() + 1)[numbers]
    chosen = in_word & (draw < CHOSEN)
    is_masked = chosen & (draw < CHOSEN * MASKED)
    is_random = chosen & ~is_masked & (draw < CHOSEN * (MASKED + RANDOM))
    # Random phonemes are drawn from this document, so frequent ones are drawn often.
    given = np.where(is_masked, _IDS["M"], symbols)
    given = np.where(is_random, rng.choice(symbols[in_word], len(symbols)), given)
    start = rng.integers(max(1, len(symbols) - length))
    return np.stack([given, symbols, words, chosen])[:, start : start + length]


def create_model(config: AlbertConfig, num_words: int) -> keras.Model:
    """Returns an encoder with PL-BERT's two heads, which give logits of each position."""
    names_of_inputs = ("input_ids", "input_mask")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names_of_inputs}
    encoder = AlbertModel(config)
    encoder.pooler.trainable = False  # No loss depends on it.
    states = encoder(inputs)["sequence_output"]
    # Matrices are initialized as in torch.
    start = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
    outputs = {
        output: keras.layers.Dense(size, kernel_initializer=start, name=HEADS[output])(states)
        for output, size in (("phonemes", config.vocab_size), ("words", num_words))
    }
    return keras.Model(inputs, outputs)


def compile_model(model: keras.Model, learning_rate: float, num_train_steps: int) -> None:
    """Sets both losses, and PL-BERT's optimizer: Adam without decay, warm-up or clipping."""
    optimizer = create_optimizer(
        *(learning_rate, num_train_steps, 0),
        schedule="constant",
        clip_norm=None,
        weight_decay_rate=0.0,
        bias_correction=True,
    )
    optimizer.build(model.trainable_variables)
    # Sums, since the positions' weights already divide them.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile(optimizer, loss=dict.fromkeys(HEADS, loss))


def stored(model: keras.Model) -> dict[str, tuple[keras.Variable, bool]]:
    """Returns weights and their moments by PL-BERT's names, and whether they are transposed."""
    places = {id(variable): i for i, variable in enumerate(model.trainable_variables)}
    found = {}
    for name, variable in loading.named_weights(model).items():
        theirs = _TO_HUGGING_FACE.forward(name)
        if theirs:
            theirs = theirs.replace("albert.", "encoder.", 1)
        else:
            theirs = name.replace("/kernel", ".weight").replace("/bias", ".bias")
        is_kernel = name.endswith("/kernel")
        found[f"module.{theirs}"] = variable, is_kernel
        if id(variable) in places:
            for moment, ours in MOMENTS.items():
                slot = getattr(model.optimizer, ours)[places[id(variable)]]
                found[f"module.{theirs}/{moment}"] = slot, is_kernel
    return found


def save(model: keras.Model, path: str, step: int) -> None:
    """Writes weights and moments by PL-BERT's names, and the step."""
    arrays = {"step": np.array(step)}
    for name, (variable, is_transposed) in stored(model).items():
        value = keras.ops.convert_to_numpy(variable)
        arrays[name] = np.ascontiguousarray(value.T if is_transposed else value)
    files.replace(path, safetensors.numpy.save(arrays))


def load(model: keras.Model, path: str) -> int:
    """Fills a compiled model from a file, which may lack heads or moments; returns the step."""
    arrays = safetensors.numpy.load_file(path)
    step = int(arrays.pop("step", 0))
    variables = stored(model)
    wrong = sorted(arrays.keys() - variables.keys())
    for name, (variable, is_transposed) in variables.items():
        shape = variable.shape[::-1] if is_transposed else variable.shape
        if name in arrays and arrays[name].shape != tuple(shape):
            wrong.append(f"{name} {arrays[name].shape}, here {tuple(shape)}")
    if wrong or not arrays:
        raise SystemExit(
            f"{path} doesn't fit the model: {'; '.join(wrong) or 'it is empty'}: give the "
            "--albert_config_file and the words.txt that it was trained with"
        )
    for name, (variable, is_transposed) in variables.items():
        if name in arrays:
            variable.assign(arrays[name].T if is_transposed else arrays[name])
    absent = sorted(variables.keys() - arrays.keys())
    # If moments start at 0, their bias correction must start at the first step.
    model.optimizer.iterations.assign(0 if any("/" in name for name in absent) else step)
    print(f"{path}: step {step:,}; not there: {', '.join(absent) or 'nothing'}")
    return step


def their_config(config: AlbertConfig) -> dict[str, object]:
    """Returns what StyleTTS2 reads from config.yml: arguments of transformers' AlbertConfig."""
    if not config.fits_any_depth or config.inner_group_num > 1:
        raise SystemExit("the config: expected layers that share all weights, as PL-BERT's do")
    theirs = config.to_dict()
    del theirs["down_scale_factor"]
    if config.hidden_act == "gelu":  # In transformers that is the exact function.
        theirs["hidden_act"] = "gelu_new"
    return {"model_params": theirs}


def train(args: argparse.Namespace) -> None:
    """Trains, and prints training and held-out (val_) losses at each checkpoint."""
    # The model, its words, and its sizes as StyleTTS2 reads them: JSON is YAML.
    data, output = pathlib.Path(args.data_dir), pathlib.Path(args.output_dir)
    vocabulary = (data / "words.txt").read_text(encoding="utf-8")
    words = vocabulary.rstrip("\n").split("\n")
    config = AlbertConfig.from_json_file(args.albert_config_file)
    keras.utils.set_random_seed(args.seed)
    model = create_model(config, len(words))
    compile_model(model, args.learning_rate, args.num_train_steps)
    step = load(model, args.init_checkpoint) if args.init_checkpoint else 0
    output.mkdir(parents=True, exist_ok=True)
    (output / "words.txt").write_text(vocabulary, encoding="utf-8")
    (output / "config.yml").write_text(json.dumps(their_config(config), indent=1))

    how = {"length": config.max_position_embeddings, "seed": args.seed, "space": words.index(SPACE)}
    batches = Documents(data / "train.jsonl", batch_size=args.train_batch_size, **how)
    held_out = Documents(data / "heldout.jsonl", batch_size=8, is_exact=True, **how)
    while step < args.num_train_steps:
        batches.steps = range(step, min(step + args.save_checkpoints_steps, args.num_train_steps))
        model.fit(batches, validation_data=held_out, shuffle=False, verbose=2)
        step = batches.steps.stop
        save(model, str(output / f"step_{step}.safetensors"), step)


def main() -> None:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data_dir", required=True, help="Directory that phonemes.py --num_words wrote.")
    add("--output_dir", required=True, help="Directory of weights.")
    add("--init_checkpoint", help="A .safetensors file to go on from.")
    add("--albert_config_file", default="albert_phonemes", help="Sizes; by default PL-BERT's.")
    add("--num_train_steps", type=int, required=True, help="The last step.")
    add("--train_batch_size", type=int, default=192, help="Documents; PL-BERT's are 192.")
    add("--save_checkpoints_steps", type=int, default=5000, help="Steps between two checkpoints.")
    add("--learning_rate", type=float, default=1e-4, help="Constant.")
    add("--seed", type=int, default=1, help="Decides weights, masks, and the order of documents.")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
