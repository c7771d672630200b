#!/bin/sh
# A table with a carriage return in a text gets another row by pandas' to_csv and read_csv.
#
# to_csv leaves the quotation marks to Python's csv.writer, which until 3.11.8 and 3.12.2 looks only
# for the characters of its own line terminator: "\n" on Linux. read_csv ends a line at "\r" too, so
# that a label becomes a text, without an error or a warning. The same pandas writes another file
# with a later Python: 3.11.9, 3.12.3 and 3.13.0 quote "\r" (python/cpython#67044). Seen with pandas
# 3.1.1 on Python 3.11.7, 3.12.1 and 3.13.0, x86-64 (30 MB of packages):
#
#   before: 'text,label\none\rtwo,a\nthree,b\n' [['one', nan], ['two', 'a'], ['three', 'b']]
#   since: 'text,label\n"one\rtwo",a\nthree,b\n' [['one\rtwo', 'a'], ['three', 'b']]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
when=$(python3 -c 'import sys
v = sys.version_info[:3]
print("since" if v >= (3, 12, 3) or (3, 11, 9) <= v < (3, 12) else "before")')
expected=$(sed -n "s/^#   \($when: \)/\1/p" "$0")
install() { python3 -m pip install --quiet --target "$folder/$1" $2; }
install packages 'pandas==3.1.1 numpy==2.4.6 python-dateutil==2.9.0.post0'
cat >"$folder/run.py" <<'END'
import pathlib
import sys

import pandas

folder, when = sys.argv[1:]
path = pathlib.Path(folder, "table.csv")
table = pandas.DataFrame({"text": ["one\rtwo", "three"], "label": ["a", "b"]})
table.to_csv(path, index=False)
print(f"{when}:", repr(path.read_bytes().decode()), pandas.read_csv(path).to_numpy().tolist())
END
found=$(PYTHONPATH="$folder/packages" python3 "$folder/run.py" "$folder" "$when")
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
