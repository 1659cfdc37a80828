import fcntl
import mmap
import os
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.directio import DirectFile, aligned_length, files, open_direct

CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def aligned(content: bytes) -> memoryview:
    buffer = memoryview(mmap.mmap(-1, max(aligned_length(len(content)), 4096)))[: len(content)]
    buffer[:] = content
    return buffer


@pytest.fixture(params=["direct", "buffered"])
def file(request, tmp_path, monkeypatch):
    """A new file, on a filesystem with O_DIRECT and on one that refuses it as the kernel does."""
    if request.param == "buffered":
        monkeypatch.setattr(os, "O_DIRECT", 0o4)  # no such flag: silently ignored by F_SETFL
        opened = open_direct(str(tmp_path / "file"), CREATE)
        opened.is_direct = False
    else:
        opened = open_direct(str(tmp_path / "file"), CREATE)
        if not opened.is_direct:
            pytest.skip(f"{tmp_path} has no O_DIRECT")
    yield opened
    opened.close()


def test_gathered_writes_come_back_scattered(file):
    content = Random(1).randbytes(5 * 4096)
    file.pwritev([aligned(content[:4096]), aligned(content[4096:])], 4096)
    file.datasync()
    parts = [aligned(bytes(8192)), aligned(bytes(16384))]
    assert file.preadv(parts, 0) == 24576
    assert b"".join(parts) == bytes(4096) + content
    assert Path(file.path).read_bytes() == bytes(4096) + content
    assert file.size_bytes() == 24576 and os.fstat(file.fileno()).st_mode & 0o777 == 0o600


def test_reading_over_the_end_says_how_much_there_was(file):
    file.write_tail(aligned(b"x" * 8192), 5000, 0)
    parts = [aligned(bytes(4096)), aligned(bytes(4096)), aligned(bytes(4096))]
    assert file.preadv(parts, 0) == 5000
    assert b"".join(parts)[:5000] == b"x" * 5000
    assert file.preadv(parts, 8192) == 0
    assert file.preadv([], 0) == 0


def test_more_buffers_than_one_call_takes(file):
    content = Random(2).randbytes(4096 * (files.IOV_MAX + 3))
    whole = aligned(content)
    views = [whole[start : start + 4096] for start in range(0, len(content), 4096)]
    file.pwritev(views, 0)
    back = aligned(bytes(len(content)))
    assert file.preadv([back[start : start + 4096] for start in range(0, len(content), 4096)], 0) == len(content)
    assert back == content


def test_a_tail_of_any_length_is_padded_written_and_cut(file):
    buffer = aligned(b"y" * 8192)
    file.pwritev([aligned(b"z" * 4096)], 0)
    for size_bytes in (1, 4095, 4096, 4097, 8192):
        buffer[:] = b"y" * 8192
        file.write_tail(buffer, size_bytes, 4096)
        assert Path(file.path).read_bytes() == b"z" * 4096 + b"y" * size_bytes
    with pytest.raises(ValueError, match="needs a buffer of 8192, not 4096"):
        file.write_tail(buffer[:4096], 4097, 0)


def test_views_of_other_items_are_refused(file):
    with pytest.raises(ValueError, match="views of bytes"):
        file.pwritev([aligned(bytes(4096)).cast("I")], 0)


def test_unaligned_direct_io_is_refused_before_anything_happens(tmp_path):
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        file = open_direct(f"{folder}/f", CREATE)
        if not file.is_direct:
            pytest.skip(f"{tmp_path} has no O_DIRECT")
        buffer = aligned(bytes(8192))
        for views, offset in [([buffer], 1), ([buffer[:4095]], 0), ([buffer[8:4104]], 0), ([buffer, buffer[:1]], 0)]:
            with pytest.raises(ValueError, match="multiples of 4096"):
                file.pwritev(views, offset)
            with pytest.raises(ValueError, match="multiples of 4096"):
                file.preadv(views, offset)
        assert file.size_bytes() == 0
        file.close()
        file.close()


def test_a_filesystem_without_direct_io_is_used_buffered(monkeypatch, tmp_path):
    real = fcntl.fcntl

    def refuse(descriptor, command, argument=0):
        if command == fcntl.F_SETFL:
            raise OSError(22, "Invalid argument")
        return real(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    file = open_direct(str(tmp_path / "f"), CREATE)
    assert not file.is_direct
    file.pwritev([memoryview(b"odd")], 7)
    assert Path(file.path).read_bytes() == bytes(7) + b"odd"
    file.close()


def test_errors_come_as_the_kernel_reports_them(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_direct(str(tmp_path / "none"), os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    file = open_direct(str(tmp_path / "f"), CREATE)
    with pytest.raises(FileExistsError):
        open_direct(str(tmp_path / "f"), CREATE)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwritev([aligned(bytes(4096))], 0)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("step", [1, 4095, 4096, 10_000])
def test_short_writes_and_reads_are_continued(monkeypatch, tmp_path, step):
    """The kernel may take or give less than asked, at any byte; the whole still arrives in order."""
    pwritev, preadv = os.pwritev, os.preadv

    def first_bytes(views):
        room, taken = step, []
        for view in views:
            taken.append(view[:room])
            room -= len(taken[-1])
        return taken

    monkeypatch.setattr(os, "pwritev", lambda fd, views, offset: pwritev(fd, first_bytes(views), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: preadv(fd, first_bytes(views), offset))
    content = Random(3).randbytes(12_000)
    descriptor = os.open(tmp_path / "f", CREATE)
    file = DirectFile(str(tmp_path / "f"), descriptor, is_direct=False)
    file.pwritev([memoryview(content)[:5000], memoryview(b""), memoryview(content)[5000:]], 3)
    back = [memoryview(bytearray(7000)), memoryview(bytearray(6000))]
    assert file.preadv(back, 3) == 12_000
    assert b"".join(back)[:12_000] == content
    file.close()


def test_a_write_that_makes_no_progress_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "pwritev", lambda fd, views, offset: 0)
    file = open_direct(str(tmp_path / "f"), CREATE)
    with pytest.raises(OSError, match="writes nothing"):
        file.pwritev([aligned(bytes(4096))], 0)
    file.pwritev([], 0)
    file.close()


@given(st.integers(0, 1 << 40))
def test_aligned_length_is_the_next_multiple(size_bytes):
    length = aligned_length(size_bytes)
    assert length % 4096 == 0 and 0 <= length - size_bytes < 4096
