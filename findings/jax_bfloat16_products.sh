#!/bin/sh
# On a CPU, jax 0.12's gradient of a product in bfloat16 loses up to a fifth of its size.
#
# x [B, S, N] times a kernel [N, M]: the gradient by the kernel adds up B * S products, all of them 1
# here, so that it must be B * S. With two axes to add up over, jax 0.12.0.1 finds 0.875 of 16 * 64
# and 0.8125 of 64 * 64; after x.reshape(-1, N), and with jax 0.10.2 in both ways, the number is
# right. Nothing warns of it, and a model still learns, with a smaller gradient for some of its
# weights. Seen on Python 3.13, x86-64 (137 MB to download, 572 MB on the disk); needs Python 3.12.
#
#   16 x 64: three axes 0.8750, two axes 1.0000
#   64 x 64: three axes 0.8125, two axes 1.0000
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
for python in python3 python3.13 python3.12; do
  $python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && break
done
$python -m pip install --quiet --target "$folder" 'jax==0.12.0.1' 'jaxlib==0.12.0.1' 'numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import jax
import jax.numpy as jnp

for rows, length in ((16, 64), (64, 64)):
    x = jnp.ones((rows, length, 64), jnp.bfloat16)

    def total(kernel, x):
        return jnp.sum(jnp.matmul(x, kernel).astype(jnp.float32))

    kernel = jnp.zeros((64, 64), jnp.bfloat16)
    shares = []
    for each in (x, x.reshape(-1, 64)):
        gradient = jax.jit(jax.grad(total))(kernel, each)
        shares.append(float(gradient[0, 0]) / (rows * length))
    print(f"{rows} x {length}: three axes {shares[0]:.4f}, two axes {shares[1]:.4f}")
END
found=$(JAX_PLATFORMS=cpu PYTHONPATH="$folder" $python "$folder/run.py")
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
