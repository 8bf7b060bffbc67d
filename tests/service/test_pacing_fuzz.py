from __future__ import annotations

from service.fuzz_http import Fuzz
from service.processes import Served


def test_requests_of_any_content_get_answers_that_the_document_has() -> None:
    with Served("memory://") as service:
        fuzz = Fuzz(136, 2, "memory://fuzz", f"http://{service.http}")
        fuzz.run()
    assert not fuzz.wrong
    for codes in (fuzz.codes, fuzz.of_mutants):
        assert codes[200] > 3
        assert codes[400] > 10
