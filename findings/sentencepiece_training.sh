#!/bin/sh
# Each of three patch releases of sentencepiece trains another vocabulary from the same text.
#
# The options are the same, in one thread and without sampling, and each release repeats its own
# vocabulary. A run that is to be repeated must name the release that its vocabulary was trained
# with, or keep the file. Seen on Python 3.11, x86-64; pieces that differ from those of 0.2.1:
#
#   0.2.1: 0 of 120
#   0.2.2: 23 of 120
#   0.2.3: 2 of 120
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
cat >"$folder/train.py" <<'END'
import codecs
import contextlib
import io
import sys

import sentencepiece

with contextlib.redirect_stdout(io.StringIO()):
    import this
texts = codecs.decode(this.s, "rot13").splitlines()
model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts), model_writer=model, vocab_size=120, num_threads=1, minloglevel=2
)
processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
pieces = {processor.id_to_piece(i) for i in range(len(processor))}
with open(sys.argv[1], "a+", encoding="utf-8") as file:
    file.seek(0)
    first = file.read().splitlines()
    if not first:
        file.write("\n".join(pieces))
print(f"{sentencepiece.__version__}: {len(pieces - {*first}) if first else 0} of {len(pieces)}")
END
found=$(for version in 0.2.1 0.2.2 0.2.3; do
  python3 -m pip install --quiet --target "$folder/$version" "sentencepiece==$version"
  PYTHONPATH="$folder/$version" python3 "$folder/train.py" "$folder/pieces"
done)
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
