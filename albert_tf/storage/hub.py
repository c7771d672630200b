"""Models and data by name on the Hugging Face Hub: hf://OWNER/NAME -> a local directory."""

from __future__ import annotations

import logging as standard_logging
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

SCHEME = "hf://"
_DATA_SETS = "datasets/"
# Files to download. A pickle (.bin) and programs are not among them: they could run code.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
# Weights of transformers' TensorFlow classes; downloaded only if there are no others.
_KERAS_WEIGHTS = "tf_model.h5"
_VOCABULARIES = (
    *("spiece.model", "30k-clean.model", "spm.model", "vocab.txt", "vocab_chinese.txt"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
# Files of sentence-transformers: settings beside the encoder, and folders of its modules.
_MODULES = (
    *("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"),
    *("*_Pooling/config.json", "*_Dense/config.json", "*_Dense/model.safetensors"),
    "*_Normalize/config.json",
)
MODEL_FILES = ("config.json", "run.json", *_WEIGHTS, *_VOCABULARIES, *_MODULES)


def download(path: str | os.PathLike[str]) -> str:
    """Returns a local path for stored weights, downloading those on the Hub.

    Args:
      path: hf://OWNER/NAME, at the newest revision; hf://OWNER/NAME@REVISION, a branch, tag or
        commit; or a local path, which is returned as it is.

    Returns:
      The directory in huggingface_hub's cache, which holds config, weights (safetensors, or else
      tf_model.h5), vocabulary and, if there is one, run.json. Files already in the cache are not
      downloaded again, and suffice without a network.
    """
    path = os.fspath(path)
    if not path.startswith(SCHEME):
        return path
    directory = fetch(path)
    logging.info("%s: %s", path, directory)
    # transformers' TensorFlow weights are a second copy in most repositories: avoid fetching them.
    if not any(file.endswith(".safetensors") for file in os.listdir(directory)):
        directory = fetch(path, (_KERAS_WEIGHTS,))
    if not any(file.endswith((".safetensors", ".h5")) for file in os.listdir(directory)):
        raise FileNotFoundError(
            f"{path} has no weights (a .bin may contain code, so it is not downloaded): "
            "there is often a converted one at hf://OWNER/NAME@refs/pr/NUMBER; or download the "
            "model yourself, and give its directory"
        )
    return directory


def fetch(path: str, patterns: Sequence[str] = MODEL_FILES, **options: Any) -> Any:
    """Downloads files of a model, or of a data set, hf://datasets/OWNER/NAME.

    Returns the directory in huggingface_hub's cache that holds those whose names match `patterns`;
    `options` are passed to huggingface_hub.snapshot_download.
    """
    # hf://[datasets/]OWNER/NAME[@REVISION]
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
        # Silence the HTTP library, which logs every request, and the Hub's, which warns of each
        # absent file, unless the user has set their levels.
        quiet = dict.fromkeys(("httpx", "httpx2"), standard_logging.WARNING)
        quiet["huggingface_hub._snapshot_download"] = standard_logging.ERROR
        for library, level in quiet.items():
            logger = standard_logging.getLogger(library)
            logger.setLevel(logger.level or level)
        # The cache is shared with other libraries, and files that are there are not fetched again.
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
    except Exception as error:  # Errors of its HTTP library share no base class with the others.
        met = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(
            f"{path} can't be downloaded ({met}): try again, or download it elsewhere and give "
            "its directory"
        ) from error


def missing(path: str, patterns: Sequence[str] = MODEL_FILES) -> dict[str, int]:
    """Asks the Hub what `fetch` would download; returns bytes by name."""
    found = fetch(path, patterns, dry_run=True)
    return {each.filename: each.file_size for each in found if each.will_download}
