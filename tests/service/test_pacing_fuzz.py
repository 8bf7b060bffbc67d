from __future__ import annotations

from service.fuzz_http import fuzz
from service.processes import Served


def test_requests_of_any_content_get_answers_that_the_document_has() -> None:
    with Served("memory://") as service:
        codes = fuzz(f"http://{service.http}", 2)
    assert codes[200] > 3
    assert codes[400] > 10
