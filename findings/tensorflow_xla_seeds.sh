#!/bin/sh
# One stateless seed gives other random numbers under XLA, but not if the seed is a constant.
#
# For a seed that is known only at run time, such as a step's, jit_compile=True draws other numbers
# than the same function without it, though the algorithm is given: another dropout mask. With the
# seed as a literal both agree, because TensorFlow computes the draw before XLA compiles the rest; a
# test with a literal finds no fault. The documentation of 2.21 promises the same numbers on the same
# hardware (tensorflow/tensorflow#117644). Seen with tensorflow-cpu 2.21.0 on Python 3.11, x86-64
# (400 MB of packages):
#
#   literal: 0.844 0.192 0.996 0.160
#   literal, XLA: 0.844 0.192 0.996 0.160
#   argument: 0.844 0.192 0.996 0.160
#   argument, XLA: 0.258 0.405 0.922 0.086
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
install() { python3 -m pip install --quiet --target "$folder/$1" $2; }
install packages 'tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import tensorflow as tf


def draw(seed):
    return tf.random.stateless_uniform([4], seed, alg="philox")


def draw_of_literal():
    return draw([1, 2])


for name, function, arguments in (
    ("literal", draw_of_literal, []),
    ("argument", draw, [tf.constant([1, 2])]),
):
    for xla in (False, True):
        numbers = tf.function(function, jit_compile=xla)(*arguments).numpy()
        print(name + ", XLA" * xla + ":", *(f"{number:.3f}" for number in numbers))
END
found=$(PYTHONPATH="$folder/packages" python3 "$folder/run.py" 2>"$folder/log") || cat "$folder/log" >&2
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
