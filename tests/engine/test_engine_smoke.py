import pytest
from engine_store import Store, assert_drives_agree, pattern, wait_until


def test_small_and_large(store: Store) -> None:
    store.put(b"a", b"hello")
    big = pattern(5_000_001)
    store.put(b"b", big)
    assert store.get(b"a") == b"hello"
    assert store.get(b"b") == big
    assert store.listed() == [b"a", b"b"]
    store.delete(b"a")
    assert store.get(b"a") is None
    assert_drives_agree(store)


@pytest.mark.peeking
def test_a_drive_that_was_away_comes_back(store: Store) -> None:
    store.put(b"before", b"1")
    store.restart(without=(1,))
    store.put(b"during", b"2")
    store.delete(b"before")
    big = pattern(4_000_000)
    store.put(b"big", big)
    store.bring_back(1)
    keeper = store.keeper()
    keeper.start()
    wait_until(lambda: all(s == 3 for s in store.states()), 20, str(store.states()))
    wait_until(lambda: not any(r.missing_shards for r in keeper.drives()), 20, str(keeper.drives()))
    keeper.close()
    assert_drives_agree(store)
    store.restart(without=(0,))
    assert store.content() == {b"during": b"2", b"big": big}
