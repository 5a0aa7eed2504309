"""Which recurrent states are kept, and that a kept one is a copy."""

from __future__ import annotations

import pytest
import torch

from chatcache.cache.states import KeptState, KeptStates, LayerState, StateRole, is_worth_keeping


def kept(num_tokens: int, turn: int, role: StateRole) -> KeptState:
    return KeptState(num_tokens, turn, role, (LayerState({0: torch.zeros(3)}, {0: None}, {0: 3}, {0: True}),))


@pytest.mark.parametrize(
    ("role", "turn", "current_turn", "expected"),
    [
        (StateRole.SHARED, 0, 100, True),
        (StateRole.PROMPT, 9, 9, True),
        (StateRole.PROMPT, 8, 9, True),
        (StateRole.PROMPT, 7, 9, False),
        (StateRole.REPLY, 8, 9, True),
        (StateRole.REPLY, 7, 9, False),
        (StateRole.REPLY, 8, 100, True),
        (StateRole.PROMPT, 8, 100, False),
        (StateRole.REPLY, 12, 100, False),
    ],
)
def test_what_is_worth_keeping(role: StateRole, turn: int, current_turn: int, expected: bool) -> None:
    assert is_worth_keeping(role, turn, current_turn) is expected


def test_a_chat_of_forty_turns_keeps_a_handful_of_states_and_every_eighth() -> None:
    states = KeptStates()
    states.add(kept(5, 0, StateRole.SHARED))
    for turn in range(1, 41):
        states.add(kept(turn * 100 - 50, turn, StateRole.PROMPT))
        states.add(kept(turn * 100, turn, StateRole.REPLY))
    assert states.positions == (5, 800, 1600, 2400, 3200, 3850, 3900, 3950, 4000)
    assert states.num_bytes == 9 * 12
    for num_tokens, position in ((4, None), (5, 5), (799, 5), (3949, 3900), (9999, 4000)):
        nearest = states.nearest(num_tokens)
        assert (None if nearest is None else nearest.num_tokens) == position
    states.crop_to(1600)
    assert states.positions == (5, 800, 1600)


def test_a_later_state_at_one_position_takes_the_place_of_the_earlier() -> None:
    states = KeptStates()
    states.add(kept(5, 1, StateRole.PROMPT))
    states.add(kept(5, 1, StateRole.SHARED))
    assert [states.nearest(5).role, *states.positions] == [StateRole.SHARED, 5]
