"""Token ids that the model does not have."""

from __future__ import annotations

from typing import Any

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.contract.sampling import SamplingParams
from baseboard.request.admission import check_token_ids


def test_ids_within_the_vocabulary_are_fine() -> None:
    params = SamplingParams(stop_token_ids=(96,), allowed_token_ids=(0, 96), logit_bias={96: 1.0})
    check_token_ids([0, 96], params, 97)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([96, 97], {}, "prompt_token_ids holds 97, but the model's token ids are 0 to 96"),
        ([-1], {}, "prompt_token_ids holds -1, but"),
        ([1.0], {}, "prompt_token_ids holds 1.0: token ids are whole numbers"),
        ([True], {}, "prompt_token_ids holds True: token ids are whole numbers"),
        (["1"], {}, "prompt_token_ids holds '1': token ids are whole numbers"),
        ([0], {"stop_token_ids": (97,)}, "stop_token_ids holds 97, but"),
        ([0], {"allowed_token_ids": (97,)}, "allowed_token_ids holds 97, but"),
        ([0], {"logit_bias": {97: 5.0}}, "logit_bias holds 97, but"),
    ],
)
def test_field_and_value_are_named(prompt: list[Any], params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        check_token_ids(prompt, SamplingParams(**params), 97)
    assert str(refused.value).startswith(message)
