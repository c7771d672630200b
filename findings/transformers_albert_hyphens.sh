#!/bin/sh
# transformers' AlbertTokenizer gives other pieces than the spiece.model that it was made from.
#
# The SentencePiece models of ALBERT's release declare ( ) " - . and others as user-defined pieces.
# The tokenizer splits a text at these first and reads each part as the beginning of a text, so that
# a part gets a space that is not there: "known" in "well-known" becomes "▁known". The weights were
# trained on SentencePiece's own pieces. Seen with transformers 5.24.0, tokenizers 0.23.3 and
# sentencepiece 0.2.1 on Python 3.11 (280 MB of packages):
#
#   sentencepiece: ▁well - k n o w n
#   transformers: ▁well - ▁known
#   sentencepiece: ▁the ▁state - o f - t h e ▁art
#   transformers: ▁the ▁state - ▁of - ▁the ▁art
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
install() { python3 -m pip install --quiet --target "$folder/$1" $2; }
install packages 'transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.1 protobuf==6.33.0'
cat >"$folder/run.py" <<'END'
import sys

import sentencepiece
from transformers import AlbertTokenizer

words = ["well", "known", "state", "of", "the", "art"]
texts = [" ".join(words[i:] + words[:i]) for i in range(len(words))] * 20
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts),
    model_prefix=f"{sys.argv[1]}/spiece",
    vocab_size=40,
    hard_vocab_limit=False,
    control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    user_defined_symbols=["-"],
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    minloglevel=2,
)
ours = sentencepiece.SentencePieceProcessor(model_file=f"{sys.argv[1]}/spiece.model")
theirs = AlbertTokenizer.from_pretrained(sys.argv[1])
for text in ("well-known", "the state-of-the art"):
    print("sentencepiece:", *ours.encode(text, out_type=str))
    print("transformers:", *theirs.tokenize(text))
END
found=$(PYTHONPATH="$folder/packages" python3 "$folder/run.py" "$folder" 2>/dev/null)
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
