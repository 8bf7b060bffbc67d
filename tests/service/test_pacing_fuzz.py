from __future__ import annotations

from service.fuzz_http import fuzz
from service.processes import Served


def test_requests_of_any_content_get_answers_that_the_document_has() -> None:
    with Served("memory://") as service:
        codes, of_mutants = fuzz(f"http://{service.http}", 2, 2, "memory://fuzz")
    for each in (codes, of_mutants):
        assert each[200] > 3
        assert each[400] > 10
