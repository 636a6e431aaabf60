"""Release schedules, by hand."""

from __future__ import annotations

import pytest

from workloads import release

pytestmark = pytest.mark.unit


def test_each_layer_of_each_chunk_releases_its_share() -> None:
    at_s, released = release.layerwise(10.0, (12.0, 13.0), (200, 100), 2, head=50, tail=600)
    assert at_s == (10.0, 11.0, 12.0, 12.5, 13.0)
    assert released == (50, 250, 450, 550, 650)


def test_without_a_head_nothing_leaves_at_the_start() -> None:
    assert release.layerwise(0.0, (1.0,), (1,), 1, head=0, tail=9) == ((1.0,), (9,))


def test_shares_that_do_not_divide_are_rounded_down_and_the_last_makes_up_for_it() -> None:
    assert release.layerwise(0.0, (3.0,), (7,), 3, head=0, tail=100)[1] == (33, 66, 100)


def test_layers_without_a_whole_byte_release_nothing() -> None:
    assert release.layerwise(0.0, (8.0,), (5,), 8, head=0, tail=2) == ((4.0, 8.0), (1, 2))
    assert release.layerwise(0.0, (8.0,), (5,), 8, head=3, tail=0) == ((0.0,), (3,))


def test_pull_is_one_release() -> None:
    assert release.pull(4.0, head=3, tail=2) == ((4.0,), (5,))


def test_an_eighty_layer_model_of_four_chunks_has_one_entry_a_layer() -> None:
    at_s, released = release.layerwise(0.0, (1.0, 2.0, 3.0, 3.5), (2048, 2048, 2048, 900), 80, 10**9, 7044 * 81920)
    assert (len(at_s), released[-1]) == (321, 10**9 + 7044 * 81920)
    assert at_s[80] == 1.0
    assert released[80] == 10**9 + 2048 * 81920
