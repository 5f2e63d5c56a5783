"""The one table of states: written out in full, enforced, and shown in the documentation."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from baseboard.contract.sampling import SamplingParams
from baseboard.request.request import Request, RequestSpec
from baseboard.request.status import FINISH_REASONS, TRANSITIONS, Event, IllegalTransition, Status, transition

DOCUMENT = Path(__file__).parents[3] / "docs" / "scheduling.md"

#: A pair of state and event that is not listed must not happen. Written by hand.
EXPECTED = """
| state | event | becomes |
| --- | --- | --- |
| waiting | admit | running |
| waiting | await_grammar | waiting_for_grammar |
| waiting | await_remote_kv | waiting_for_remote_kv |
| waiting | await_input | waiting_for_streaming_input |
| waiting_for_grammar | grammar_ready | waiting |
| waiting_for_streaming_input | preempt | waiting_for_streaming_input |
| waiting_for_streaming_input | swap_out | waiting_for_streaming_input |
| waiting_for_streaming_input | input_came_new | waiting |
| waiting_for_streaming_input | input_came | running |
| waiting_for_streaming_input | input_came_swapped | swapped |
| waiting_for_streaming_input | input_came_preempted | preempted |
| waiting_for_remote_kv | preempt | preempted |
| waiting_for_remote_kv | remote_kv_landed | loaded |
| loaded | admit | running |
| loaded | preempt | preempted |
| running | preempt | preempted |
| running | swap_out | swapped |
| running | await_input | waiting_for_streaming_input |
| preempted | admit | running |
| preempted | await_remote_kv | waiting_for_remote_kv |
| swapped | preempt | preempted |
| swapped | swap_in | running |
""".strip()

#: What ends a request does so in every state that is not an end itself.
ENDS = """
| event | stop | reach_limit | abort | fail | repeat | ignore |
| --- | --- | --- | --- | --- | --- | --- |
| any state above | stopped | length_capped | aborted | failed | repetition | ignored |
""".strip()


def table(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def going_on() -> str:
    """The table from the code: events that end nothing."""
    rows = [
        [status.value, event.value, TRANSITIONS[event, status].value]
        for status in Status
        for event in Event
        if (event, status) in TRANSITIONS and event not in ending()
    ]
    return table([["state", "event", "becomes"], ["---"] * 3, *rows])


def ending() -> dict[Event, Status]:
    return {event: end for (event, _), end in TRANSITIONS.items() if end.finished}


def ends() -> str:
    return table(
        [
            ["event", *[event.value for event in ending()]],
            ["---"] * (1 + len(ending())),
            ["any state above", *[end.value for end in ending().values()]],
        ]
    )


def test_the_tables_are_the_ones_written_down() -> None:
    assert going_on() == EXPECTED
    assert ends() == ENDS
    live = [status for status in Status if not status.finished]
    assert {pair for pair in TRANSITIONS if pair[0] in ending()} == set(product(ending(), live))


def test_the_documentation_shows_the_tables() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert going_on() in text, "docs/scheduling.md: put the new table there"
    assert ends() in text, "docs/scheduling.md: put the new table there"


@pytest.mark.parametrize(("event", "status"), list(product(Event, Status)))
def test_an_event_leads_where_the_table_says_or_is_refused(event: Event, status: Status) -> None:
    if (event, status) in TRANSITIONS:
        assert transition("x", status, event) is TRANSITIONS[event, status]
    else:
        with pytest.raises(IllegalTransition, match=f"^request 'x': event '{event.value}' in state '{status.value}'$"):
            transition("x", status, event)


def test_finished_states_have_a_reason_and_are_final() -> None:
    assert {status: status.finish_reason for status in Status if status.finished} == {
        Status.STOPPED: "stop",
        Status.LENGTH_CAPPED: "length",
        Status.ABORTED: "abort",
        Status.FAILED: "error",
        Status.REPETITION: "repetition",
        Status.IGNORED: "ignored",
    }
    assert not [pair for pair in TRANSITIONS if pair[1].finished]
    assert not [status for status in Status if status.finish_reason and not status.finished]
    assert set(TRANSITIONS.values()) & set(FINISH_REASONS) == set(FINISH_REASONS)


def make_request(num_prompt: int = 4, max_total: int = 9, **params: int) -> Request:
    spec = RequestSpec("x", tuple(range(num_prompt)), SamplingParams(**params), max_total, frozenset())
    return Request(spec, (0, 0))


def test_only_an_event_changes_the_status_of_a_request() -> None:
    request = make_request()
    with pytest.raises(AttributeError):
        request.status = Status.RUNNING  # pyright: ignore[reportAttributeAccessIssue]
    request.on(Event.ADMIT)
    assert request.status is Status.RUNNING
    with pytest.raises(IllegalTransition):
        request.on(Event.ADMIT)
    assert request.status is Status.RUNNING
    request.on(Event.STOP)
    assert (request.finished, request.finish_reason) == (True, "stop")


def test_the_target_is_what_is_known_and_promised_short_of_the_last_token() -> None:
    request = make_request(num_prompt=4, max_total=6)
    assert request.target == 4
    request.promised = 1
    assert request.target == 5
    request.promised = 2
    assert request.target == 5, "the last token of a request is never computed"
    request.promised, request.width, request.computed = 1, 3, 4
    assert request.target == 4, "it has to be forked before it goes on"


def test_a_late_result_is_good_only_for_a_request_that_was_preempted_once_and_waits() -> None:
    request = make_request(num_prompt=4)
    request.on(Event.ADMIT)
    request.resident = True
    planned_in = request.epoch
    request.drop_kv()
    request.on(Event.PREEMPT)
    assert request.awaits(planned_in, 4)
    assert not request.awaits(planned_in, 5), "a token is missing before it"
    assert not request.awaits(planned_in - 1, 4)
    request.resident = True
    assert not request.awaits(planned_in, 4), "it has come back without that token"
    request.resident = False
    request.disown()
    assert not request.awaits(planned_in, 4)
    assert not request.awaits(request.epoch, 4)


def test_a_finished_request_awaits_nothing() -> None:
    request = make_request()
    planned_in = request.epoch
    request.leave_executor()
    request.on(Event.ABORT)
    assert not request.awaits(planned_in, 4)
