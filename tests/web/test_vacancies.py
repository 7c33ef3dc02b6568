"""Which idle connections make room: those of the address with most, the longest idle first."""

from doubledecker.web.addresses import IdleConnection, Vacancies


def closed(idle: list[tuple[str, float]], *, beyond: int, most: int = 10) -> list[tuple[str, float]]:
    gone: list[tuple[str, float]] = []
    kept = (IdleConnection(host, since_s, lambda each=(host, since_s): gone.append(each)) for host, since_s in idle)
    Vacancies().make(kept, beyond=beyond, most=most, now_s=100.0)
    return gone


def test_the_address_with_most_makes_room_and_of_its_connections_the_longest_idle():
    idle = [("192.0.2.1", 1.0), ("192.0.2.2", 30.0), ("192.0.2.2", 20.0), ("192.0.2.2", 40.0), ("192.0.2.1", 2.0)]

    assert closed(idle, beyond=1) == [("192.0.2.2", 20.0)]
    assert closed(idle, beyond=4) == [("192.0.2.2", 20.0), ("192.0.2.2", 30.0), ("192.0.2.2", 40.0), ("192.0.2.1", 1.0)]


def test_of_many_some_more_are_closed_than_have_to_be_so_that_the_next_need_no_look():
    assert len(closed([("192.0.2.1", float(n)) for n in range(1_000)], beyond=1, most=1_000)) == 21


def test_where_too_few_are_idle_nobody_looks_again_for_a_while():
    vacancies, looks = Vacancies(), list[float]()

    def none_at(now_s: float):
        looks.append(now_s)
        yield from ()

    for now_s in (100.0, 100.05, 100.2):
        vacancies.make(none_at(now_s), beyond=1, most=10, now_s=now_s)

    assert looks == [100.0, 100.2]
