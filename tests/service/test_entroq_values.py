"""Values of tasks as messages: what protobuf's own conversions make of them, which are slower."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value
from hypothesis import given
from hypothesis import strategies as st

from intervalq.service._entroq.model import whole
from intervalq.service._entroq.values import Budget, Values, value_of
from intervalq.service._refusal import Refusal

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda each: st.lists(each, max_size=4) | st.dictionaries(_TEXT, each, max_size=4),
    max_leaves=12,
)


@given(_JSON)
def test_a_value_is_the_message_that_protobuf_makes_of_it(value: object) -> None:
    text = json.dumps(value)
    made = value_of(text, Budget())
    assert made == json_format.Parse(text, Value())
    assert json.loads(Values().json_of(made)) == whole(json_format.MessageToDict(made))


@pytest.mark.parametrize(
    "text", ["1e400", "[-1e400]", "NaN", '"\\ud800"', '{"\\ud800":1}', "{", "", "9" * 400]
)
def test_what_no_message_can_carry_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="can't be shown"):
        value_of(text, Budget())
