"""`make reproduce`: a released model fine-tuned, beside its published score. See __main__.py."""
