#!/bin/sh
# Installs albert-serve, without TensorFlow, into a new virtual environment:
#     sh tools/docker/install.sh CLONE ENVIRONMENT
set -eu
python3 -m venv "$2"
"$2/bin/pip" install --no-cache-dir --quiet -r "$1/tools/docker/requirements.txt"
"$2/bin/pip" install --no-cache-dir --quiet --no-deps "$1"
# A server installs nothing.
"$2/bin/pip" uninstall --quiet --yes pip
"$2/bin/albert-serve" --help >"$2/help.txt" || test -s "$2/help.txt"
