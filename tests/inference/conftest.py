"""Fixtures of the tests of models that the tests of inference use too."""

from tests.models.conftest import one_thread as one_thread  # noqa: PLC0414  (a fixture)
