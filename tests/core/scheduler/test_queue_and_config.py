"""The ranked queue against a sorted list, and what the configuration refuses."""

from __future__ import annotations

from random import Random

import pytest

from baseboard.contract.errors import RequestRejected
from baseboard.contract.sampling import SamplingParams
from baseboard.request.request import Request, RequestSpec
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.queue import RankedQueue


def request(*rank: int) -> Request:
    return Request(RequestSpec(f"r{rank}", (1,), SamplingParams(), 2, frozenset()), rank)


def test_a_queue_is_sorted_by_rank_whatever_the_order_of_adding() -> None:
    a, b, c, d = request(0, 1), request(0, 2), request(1, 0), request(2, 0)
    queue = RankedQueue()
    for each in (c, a, d, b):
        queue.add(each)
    assert list(queue) == [a, b, c, d]
    assert (len(queue), queue.items[0], queue.items[-1]) == (4, a, d)
    queue.remove(b)
    queue.remove(d)
    assert list(queue) == [a, c]


def test_removing_what_is_not_there_is_an_error() -> None:
    queue = RankedQueue()
    queue.add(request(1))
    for stranger in (request(0), request(1), request(2)):
        with pytest.raises(KeyError):
            queue.remove(stranger)
    assert len(queue) == 1


def test_a_queue_behaves_like_a_sorted_list() -> None:
    rng = Random(3)
    queue, model = RankedQueue(), []
    for number in range(500):
        if model and rng.random() < 0.45:
            gone = rng.choice(model)
            queue.remove(gone)
            model.remove(gone)
        else:
            new = request(rng.randint(0, 5), number)
            queue.add(new)
            model.append(new)
        model.sort(key=lambda each: each.rank)
        assert list(queue) == model


def config(**numbers: int | None) -> SchedulerConfig:
    values = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64, "pool_tokens": 100, **numbers}
    return SchedulerConfig(**values)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("numbers", "longest"),
    [
        ({}, 63),
        ({"pool_tokens": 63}, 63),
        ({"pool_tokens": 62}, 62),
        ({"chunked_prefill": False}, 32),
        ({"chunked_prefill": False, "pool_tokens": 20}, 20),
    ],
)
def test_the_longest_prompt_follows_from_the_limits(numbers: dict[str, int], longest: int) -> None:
    limits = config(**numbers)
    assert limits.max_prompt == longest
    limits.check_prompt(longest, 1)
    with pytest.raises(RequestRejected):
        limits.check_prompt(longest + 1, 1)


@pytest.mark.parametrize(
    ("numbers", "prompt", "n", "message"),
    [
        ({}, 0, 1, "the prompt is empty: give at least one token"),
        ({}, 64, 1, "the prompt has 64 tokens, but max_model_len=64 leaves room for 63 and one output; "
                    "shorten it or raise max_model_len"),
        ({"pool_tokens": 40}, 41, 1, "the prompt has 41 tokens, but the whole KV pool holds 40; "
                                     "shorten it or raise num_kv_blocks"),
        ({"chunked_prefill": False}, 33, 1, "the prompt has 33 tokens, but without chunked prefill a step takes "
                                            "max_num_batched_tokens=32; raise it or enable chunked prefill"),
        ({}, 4, 5, "n=5 samples need as many places, but max_num_seqs=4; raise it"),
        ({"max_num_active_seqs": 2}, 4, 3, "n=3 samples need as many places, but max_num_active_seqs=2; raise it"),
    ],
)  # fmt: skip
def test_refusals_name_value_limit_and_way_out(numbers: dict[str, int], prompt: int, n: int, message: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        config(**numbers).check_prompt(prompt, n)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "total"),
    [(10, 5, 15), (10, 54, 64), (10, 55, 64), (10, None, 64), (63, 10, 64)],
)
def test_a_request_ends_at_its_own_or_the_models_limit(prompt: int, max_tokens: int | None, total: int) -> None:
    assert config().max_total(prompt, max_tokens) == total


def test_a_request_may_know_one_token_more_than_the_pool_holds() -> None:
    assert config(pool_tokens=40).max_total(10, None) == 41
    assert config(pool_tokens=40).max_total(10, 31) == 41
    assert config(pool_tokens=40).max_total(10, 30) == 40


@pytest.mark.parametrize(("active", "running"), [(None, 4), (2, 2), (4, 4)])
def test_a_lower_limit_for_running_requests_holds(active: int | None, running: int) -> None:
    assert config(max_num_active_seqs=active).max_running == running
