"""What waits in a switch's packet sockets, from the kernel's own table."""

from __future__ import annotations

import pytest

from ocs_switch.drain import backlog, waiting

pytestmark = pytest.mark.unit

TABLE = """sk       RefCnt Type Proto  Iface R Rmem   User   Inode
00000000 3      3    0003   7     1 0      0      101
00000000 3      3    0003   8     1 18304  0      102
00000000 3      3    0003   9     1 768    0      103
00000000 3      3    0000   0     0 0      0      104
"""


def test_what_waits_is_counted_by_interface() -> None:
    assert waiting(TABLE, [7]) == 0
    assert waiting(TABLE, [7, 8]) == 18304
    assert waiting(TABLE, {8, 9, 99}) == 18304 + 768
    assert waiting(TABLE, []) == 0


def test_another_table_is_refused_and_not_taken_for_an_empty_one() -> None:
    with pytest.raises(ValueError, match="not a table of packet sockets"):
        waiting("Num RefCount Protocol\n", [7])


def test_the_kernels_table_is_one() -> None:
    assert backlog([]) == 0
