"""The server against its own OpenAPI schema: requests made from it get what it says, and never a
fault of the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import Served, running

from pyselfspec import Model
from pyselfspec.serve.settings import Capacity

N_EXAMPLES = 5
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    """With little room, so that no answer takes long."""
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=2)) as found:
        yield found


@pytest.mark.parametrize("is_right", [True, False])
def test_requests_get_what_the_schema_says(is_right: bool, served: Served) -> None:
    """Requests that keep to the schema, and requests that do not."""
    check_operations(served, is_right, n_least=16)


@pytest.mark.parametrize("is_right", [True, False])
def test_requests_for_embeddings(is_right: bool, encoder: Served) -> None:
    check_operations(encoder, is_right, n_least=8)


def check_operations(served: Served, is_right: bool, n_least: int) -> None:
    """Make requests for every operation of a server. is_right: whether they keep to the schema."""
    mode = GenerationMode.POSITIVE if is_right else GenerationMode.NEGATIVE
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= n_least
    for operation in operations:
        if not is_right and not list(operation.body):
            continue  # there is nothing to be wrong

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=N_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict):
                case.body["max_tokens"] = case.body["max_output_tokens"] = 4
                case.body.pop("max_completion_tokens", None)
            case.call_and_validate(checks=list(CHECKS))

        check()
