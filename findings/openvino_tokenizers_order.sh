#!/bin/sh
# openvino_tokenizers changes letters' case before replacements that come first in the tokenizer.
#
# A tokenizer for Turkish writes I as ı and İ as i, and lower-cases what is left: so its normalizer is
# NFC, two replacements, and Lowercase. convert_tokenizer joins all steps that change Unicode's form or
# case into one, at the place of the first: here before the replacements, which then find no capital.
# Without NFC the steps keep their order. No error or warning, but other ids, and so other answers of
# the model. Seen with openvino-tokenizers 2026.4.1.0, openvino 2026.4.1, tokenizers 0.23.3 and
# transformers 5.24.0, Python 3.11, x86-64.
#
#   NFC first: IRMAK is [1] in tokenizers, [2] in OpenVINO
#   without NFC: IRMAK is [1] in tokenizers, [1] in OpenVINO
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
python3 -m pip install --quiet --target "$folder" 'openvino-tokenizers==2026.4.1.0' \
  'openvino==2026.4.1' 'tokenizers==0.23.3' 'transformers==5.24.0' 'numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import openvino
import openvino_tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

WORDS = {"[UNK]": 0, "ırmak": 1, "irmak": 2}
turkish = [
    normalizers.Replace(Regex("I"), "ı"),
    normalizers.Replace(Regex("İ"), "i"),
    normalizers.Lowercase(),
]
for title, steps in {"NFC first": [normalizers.NFC(), *turkish], "without NFC": turkish}.items():
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    own = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[UNK]")
    model = openvino.Core().compile_model(openvino_tokenizers.convert_tokenizer(own), "CPU")
    theirs = model(["IRMAK"])["input_ids"][0].tolist()
    print(f"{title}: IRMAK is {own('IRMAK')['input_ids']} in tokenizers, {theirs} in OpenVINO")
END
found=$(PYTHONPATH="$folder" python3 "$folder/run.py")
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
