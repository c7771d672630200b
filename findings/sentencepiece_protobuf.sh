#!/bin/sh
# sentencepiece 0.2.3 asks for any protobuf, and can't read a model's file with those before 7.36.1.
#
# Its generated module sentencepiece_model_pb2 raises with an older protobuf, as apache-beam 2.77
# needs one (below 7). The extra `protobuf` names no version, so pip reports no conflict. Until 0.2.2
# the module works with protobuf 5, 6 and 7. Seen with protobuf 6.33.6 on Python 3.11, x86-64:
#
#   0.2.2: imported
#   0.2.3: VersionError: gencode 7.36.1 runtime 6.33.6
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
cat >"$folder/read.py" <<'END'
import re

import sentencepiece

try:
    from sentencepiece import sentencepiece_model_pb2

    found = "imported"
except Exception as error:
    versions = re.findall(r"(?:gencode|runtime) [\d.]*\d", str(error))
    found = f"{type(error).__name__}: {' '.join(versions)}"
print(f"{sentencepiece.__version__}: {found}")
END
found=$(for version in 0.2.2 0.2.3; do
  python3 -m pip install --quiet --target "$folder/$version" \
    "sentencepiece[protobuf]==$version" 'protobuf==6.33.6'
  PYTHONPATH="$folder/$version" python3 "$folder/read.py"
done)
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
