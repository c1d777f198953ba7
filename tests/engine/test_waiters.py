import threading

import pytest

from laconic.engine.mixer import Waiters


class Work:
    """Ends when it is told to."""

    def __init__(self, error=None):
        self._end, self._error = threading.Event(), error

    def end(self):
        self._end.set()

    def wait(self):
        assert self._end.wait(10)
        if self._error is not None:
            raise self._error


def test_what_ends_first_is_told_first():
    waiters, works = Waiters(3), [Work(), Work(), Work()]
    for number, work in enumerate(works):
        waiters.post(number, [work])
    for number in (1, 2, 0):
        works[number].end()
        assert waiters.next() == number
    waiters.close()


def test_all_works_of_an_item_must_end():
    waiters, (first, second, other) = Waiters(2), (Work(), Work(), Work())
    waiters.post(7, [first, second])
    waiters.post(8, [other])
    first.end()
    other.end()
    assert waiters.next() == 8
    second.end()
    assert waiters.next() == 7
    waiters.close()


def test_what_went_wrong_is_raised():
    waiters, work = Waiters(1), Work(RuntimeError("gone"))
    waiters.post(0, [work])
    work.end()
    with pytest.raises(RuntimeError, match="gone"):
        waiters.next()
    waiters.close()


def test_closed_threads_end():
    others = set(threading.enumerate())  # some of which may be about to end
    waiters = Waiters(4)
    threads = set(threading.enumerate()) - others
    assert len(threads) == 4
    waiters.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
