"""Trains by google-research/albert's own code and by ours, on the same data, and compares.

    make beside-release RELEASE=path/to/its/clone
    make beside-release RELEASE=... ARGS='--steps 100 --seeds 2'
    make beside-release RELEASE=... ARGS='--checkpoint albert_small --glue glue --squad squad'

The release's code runs as it is, on Python 3.7 with TensorFlow 1.15, which `make` installs in
.venv-release. Both pre-train the demo's model on the demo's records, with AdamW and with LAMB; one
evaluator, ours, judges all checkpoints on the same held-out records. The results are in
--output_dir: pretraining.md, pretraining.png, and a curve.json for each run. A run that is complete
is not made again; an interrupted one goes on.

With --checkpoint, a model that albert-convert reads, they fine-tune that instead, and so does
transformers: on MRPC, RTE and CoLA of --glue, on SQuAD 1.1 of --squad (there without transformers),
or on all. The results are in finetuning.md. An interrupted run begins anew.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from research.beside_release import finetuning, pretraining
from research.beside_release.scripts import ROOT, Scripts

sys.path.insert(0, str(ROOT / "examples"))
import demo


def main() -> None:
    """Makes all runs, and writes what they show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", required=True, help="a clone of google-research/albert")
    parser.add_argument("--python", required=True, help="a Python 3.7 with TensorFlow 1.15")
    parser.add_argument("--output_dir", default="beside_release")
    parser.add_argument("--steps", type=int, help="by default 5000; in fine-tuning the task's")
    parser.add_argument(
        "--seeds", type=int, help="of each side: by default 3; in fine-tuning the task's"
    )
    parser.add_argument("--checkpoint", type=pathlib.Path, help="weights to fine-tune")
    parser.add_argument("--glue", type=pathlib.Path, help="GLUE's folder of folders")
    parser.add_argument("--squad", type=pathlib.Path, help="the folder of SQuAD 1.1's two files")
    args = parser.parse_args()

    release, folder = pathlib.Path(args.release), pathlib.Path(args.output_dir).absolute()
    if not (release / "run_pretraining.py").is_file():
        sys.exit(f"error: --release: {release} is no clone of google-research/albert")
    scripts = Scripts(release, pathlib.Path(args.python).absolute(), folder)
    if args.checkpoint:
        table = finetune(scripts, args)
        name = "finetuning.md"
    else:
        table = pretrain(scripts, args.steps or 5000, args.seeds or 3)
        name = "pretraining.md"
    (folder / name).write_text("\n".join(table) + "\n", encoding="utf-8")
    print("\n".join(table))


def pretrain(scripts: Scripts, steps: int, seeds: int) -> list[str]:
    """Pre-trains by both, and draws the curves; returns a table."""
    folder = str(scripts.folder / "demo")
    paths = demo.prepare_records(folder, demo.prepare_text(folder))
    sizes = {
        "albert_config_file": demo.CONFIG,
        "max_seq_length": demo.MAX_SEQ_LENGTH,
        "max_predictions_per_seq": demo.MAX_PREDICTIONS,
    }
    runs = pretraining.train(scripts, paths["train_records"], sizes, steps, seeds)
    curves = pretraining.judge(runs, paths["dev_records"], sizes)
    pretraining.draw(curves, scripts.folder / "pretraining.png")
    return pretraining.report(curves)


def finetune(scripts: Scripts, args: argparse.Namespace) -> list[str]:
    """Fine-tunes by all on the tasks whose data is given; returns a table."""
    given = {"train_step": args.steps, "seeds": args.seeds}
    changed = {name: value for name, value in given.items() if value}
    tasks = [(task._replace(**changed), args.glue) for task in finetuning.TASKS if args.glue]
    tasks += [(finetuning.SQUAD._replace(**changed), args.squad)] if args.squad else []
    if not tasks:
        sys.exit("error: --checkpoint needs --glue, --squad or both: what to fine-tune on")
    for path in (path for task, data in tasks for path in finetuning.files_of(task, data)):
        if not path.is_file():
            sys.exit(f"error: there is no file {path}: give the folder that holds it")
    finetuning.convert(args.checkpoint, scripts.folder)
    scores: dict[finetuning.Run, dict[str, float]] = {}
    for task, data in tasks:
        runs = finetuning.train(scripts, task, data)
        scores |= finetuning.judge(scripts, runs, data)
    return finetuning.report(scores)


if __name__ == "__main__":
    main()
