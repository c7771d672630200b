"""Models by name on the Hugging Face Hub: hf://OWNER/NAME -> a local directory."""

from __future__ import annotations

import logging as standard_logging
import os

from absl import logging

SCHEME = "hf://"
# Config, weights, vocabulary and a run's record: no pickle (.bin) and no program.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
_VOCABULARIES = (
    *("spiece.model", "30k-clean.model", "spm.model", "vocab.txt", "vocab_chinese.txt"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
_FILES = ("config.json", "run.json", *_WEIGHTS, *_VOCABULARIES)


def local(path: str | os.PathLike[str]) -> str:
    """Returns a local path for stored weights, downloading those on the Hub.

    Args:
      path: hf://OWNER/NAME, at the newest revision; hf://OWNER/NAME@REVISION, a branch, tag or
        commit; or a local path, which is returned as it is.

    Returns:
      The directory in huggingface_hub's cache, which holds config, safetensors, vocabulary and, if
      there is one, run.json. What is there already is not downloaded again, and is enough without a
      network.
    """
    path = os.fspath(path)
    if not path.startswith(SCHEME):
        return path
    name, _, revision = path.removeprefix(SCHEME).partition("@")
    directory = _download(path, name, revision or None)
    logging.info("%s: %s", path, directory)
    if not any(file.endswith(".safetensors") for file in os.listdir(directory)):
        raise FileNotFoundError(
            f"{path} has no model.safetensors (a .bin may contain code, so it is not downloaded): "
            "there is often a converted one at hf://OWNER/NAME@refs/pr/NUMBER; or download the "
            "model yourself, and give its directory"
        )
    return directory


def _download(path: str, name: str, revision: str | None) -> str:
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ImportError(
            f"{path} needs the package huggingface_hub: pip install 'albert_tf[hub]'"
        ) from error
    try:
        # The HTTP library would log every request; a level that the user has set stays.
        requests = standard_logging.getLogger("httpx")
        requests.setLevel(requests.level or standard_logging.WARNING)
        return huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(_FILES), library_name="albert_tf"
        )
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"{path}: the model has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{path}: the Hub has no such model, or you have no access to it: check the name at "
            f"https://huggingface.co/{name}; a private or gated model needs `hf auth login`"
        ) from error
    except Exception as error:  # The errors of its HTTP library have no common base with others.
        met = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(
            f"{path} can't be downloaded ({met}): try again, or download it elsewhere and give "
            "its directory"
        ) from error
