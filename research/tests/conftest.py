"""The settings of the library's tests: they hold here, too."""

from tests.conftest import (  # noqa: F401
    _no_silent_end,
    every_chain_fused,
    golden,
    pytest_collection_finish,
    pytest_runtest_setup,
    tokenizer,
    vocabulary,
)
