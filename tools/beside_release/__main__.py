"""Trains by google-research/albert's own code and by ours, on the same data, and compares.

    make beside-release RELEASE=path/to/its/clone
    make beside-release RELEASE=... ARGS='--steps 100 --seeds 2'

The release's code runs as it is, on Python 3.7 with TensorFlow 1.15, which `make` installs in
.venv-release. Both pre-train the demo's model on the demo's records, with AdamW and with LAMB; one
evaluator, ours, judges all checkpoints on the same held-out records. The results are in
--output_dir: pretraining.md, pretraining.png, and a curve.json for each run. A run that is complete
is not made again; an interrupted one goes on.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from tools.beside_release import pretraining
from tools.beside_release.scripts import ROOT, Scripts

sys.path.insert(0, str(ROOT / "examples"))
import demo


def main() -> None:
    """Makes all runs, and writes what they show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", required=True, help="a clone of google-research/albert")
    parser.add_argument("--python", required=True, help="a Python 3.7 with TensorFlow 1.15")
    parser.add_argument("--output_dir", default="beside_release")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each side")
    args = parser.parse_args()

    folder = pathlib.Path(args.output_dir)
    release = pathlib.Path(args.release)
    if not (release / "run_pretraining.py").is_file():
        sys.exit(f"error: --release: {release} is no clone of google-research/albert")
    scripts = Scripts(release, pathlib.Path(args.python).absolute(), folder.absolute())
    paths = demo.prepare_records(str(folder / "demo"))
    sizes = {
        "albert_config_file": demo.CONFIG,
        "max_seq_length": demo.MAX_SEQ_LENGTH,
        "max_predictions_per_seq": demo.MAX_PREDICTIONS,
    }
    runs = pretraining.train(scripts, paths["train_records"], sizes, args.steps, args.seeds)
    curves = pretraining.judge(runs, paths["dev_records"], sizes)
    table = pretraining.report(curves)
    (folder / "pretraining.md").write_text("\n".join(table) + "\n", encoding="utf-8")
    pretraining.draw(curves, folder / "pretraining.png")
    print("\n".join(table))


if __name__ == "__main__":
    main()
