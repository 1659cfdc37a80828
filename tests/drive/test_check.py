import os

import pytest

from forebay.drive import LocalDrive, check_index
from forebay.drive.testing import IDENTITY
from forebay.errors import DriveFailed


@pytest.fixture
def filled(drive, folder):
    """A closed drive with 2,000 records of 1 KB."""
    drive.commit(1, [(b"O%06d" % number, bytes(1000)) for number in range(2000)], [])
    drive.close()
    return folder


def test_a_good_index_is_read_to_its_end_while_it_is_used(filled):
    drive = LocalDrive.open(filled, IDENTITY)
    assert check_index(filled) == 2001
    drive.commit(2, [(b"Oz", b"")], [])
    assert check_index(filled, timeout_s=60) == 2002
    drive.close()


def test_a_truncated_index_kills_its_reader_not_us(filled):
    """As a filesystem leaves it that lost its newest blocks."""
    os.truncate(f"{filled}/index/data.mdb", 64 << 10)
    with pytest.raises(DriveFailed, match=r"reading the index ends in SIG(BUS|SEGV)"):
        check_index(filled)


def test_an_index_that_is_none_says_so(filled):
    with open(f"{filled}/index/data.mdb", "r+b") as file:
        file.write(os.urandom(8192))
    with pytest.raises(DriveFailed, match=r"the index cannot be read: .*open the index: .*INVALID"):
        check_index(filled)


def test_a_folder_that_is_no_drive_and_a_check_that_takes_too_long(filled, tmp_path):
    with pytest.raises(DriveFailed, match="is not a drive of Forebay"):
        check_index(str(tmp_path))
    with pytest.raises(DriveFailed, match=r"longer than 0\.001 s"):
        check_index(filled, timeout_s=0.001)
