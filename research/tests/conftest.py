"""The settings and fixtures of the library's tests hold here, too."""

from tests.conftest import *  # noqa: F403
from tests.conftest import _no_silent_end  # noqa: F401
