"""`python -m albert_tf.predict`; see serving/predict.py."""

from __future__ import annotations

from albert_tf.serving.predict import main

if __name__ == "__main__":
    main()
