"""Models and data by name on the Hugging Face Hub: hf://OWNER/NAME -> a local directory."""

from __future__ import annotations

import logging as standard_logging
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

SCHEME = "hf://"
_DATA_SETS = "datasets/"
# Config, weights, vocabulary and a run's record: no pickle (.bin) and no program.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
# Of transformers' TensorFlow classes; downloaded only where there are no others.
_KERAS_WEIGHTS = "tf_model.h5"
_VOCABULARIES = (
    *("spiece.model", "30k-clean.model", "spm.model", "vocab.txt", "vocab_chinese.txt"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
MODEL_FILES = ("config.json", "run.json", *_WEIGHTS, *_VOCABULARIES)


def download(path: str | os.PathLike[str]) -> str:
    """Returns a local path for stored weights, downloading those on the Hub.

    Args:
      path: hf://OWNER/NAME, at the newest revision; hf://OWNER/NAME@REVISION, a branch, tag or
        commit; or a local path, which is returned as it is.

    Returns:
      The directory in huggingface_hub's cache, which holds config, weights (safetensors, or else
      tf_model.h5), vocabulary and, if there is one, run.json. What is there already is not
      downloaded again, and is enough without a network.
    """
    path = os.fspath(path)
    if not path.startswith(SCHEME):
        return path
    directory = fetch(path)
    logging.info("%s: %s", path, directory)
    if not any(file.endswith(".safetensors") for file in os.listdir(directory)):
        directory = fetch(path, (_KERAS_WEIGHTS,))
    if not any(file.endswith((".safetensors", ".h5")) for file in os.listdir(directory)):
        raise FileNotFoundError(
            f"{path} has no weights (a .bin may contain code, so it is not downloaded): "
            "there is often a converted one at hf://OWNER/NAME@refs/pr/NUMBER; or download the "
            "model yourself, and give its directory"
        )
    return directory


def fetch(path: str, patterns: Sequence[str] = MODEL_FILES) -> str:
    """Downloads files of a model, or of a data set, hf://datasets/OWNER/NAME.

    Returns:
      The directory in huggingface_hub's cache that holds those whose names match `patterns`.
    """
    return _download(path, patterns)


def missing(path: str, patterns: Sequence[str] = MODEL_FILES) -> dict[str, int]:
    """Returns what `fetch` would download, in bytes by name; the Hub is asked."""
    found = _download(path, patterns, dry_run=True)
    return {each.filename: each.file_size for each in found if each.will_download}


def _download(path: str, patterns: Sequence[str], **options: Any) -> Any:
    name, _, revision = path.removeprefix(SCHEME).partition("@")
    repo_type, page = "model", f"https://huggingface.co/{name}"
    if name.startswith(_DATA_SETS):
        repo_type, name = "dataset", name.removeprefix(_DATA_SETS)
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ImportError(
            f"{path} needs the package huggingface_hub: pip install 'albert_tf[hub]'"
        ) from error
    try:
        # The HTTP library would log every request, the Hub's that it has no file of a name; a level
        # that the user has set stays.
        quiet = dict.fromkeys(("httpx", "httpx2"), standard_logging.WARNING)
        quiet["huggingface_hub._snapshot_download"] = standard_logging.ERROR
        for library, level in quiet.items():
            logger = standard_logging.getLogger(library)
            logger.setLevel(logger.level or level)
        return huggingface_hub.snapshot_download(
            name,
            repo_type=repo_type,
            revision=revision or None,
            allow_patterns=list(patterns),
            library_name="albert_tf",
            **options,
        )
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"{path}: the {repo_type} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{path}: the Hub has no such {repo_type}, or you have no access to it: check the "
            f"name at {page}; a private or gated one needs `hf auth login`"
        ) from error
    except Exception as error:  # The errors of its HTTP library have no common base with others.
        met = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(
            f"{path} can't be downloaded ({met}): try again, or download it elsewhere and give "
            "its directory"
        ) from error
