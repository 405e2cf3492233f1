"""Rotors slot by slot: matchings, quotas, and transfers over a host in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.sip_ml.simulation.rotor_slots import (
    RotorRun,
    SlottedRotors,
    fair,
    spread,
)


def rotors(racks: int = 8, hosts: int = 1, switches: int = 2, **keys) -> SlottedRotors:
    return SlottedRotors(racks, hosts, switches, 10e9, 240e-6, 24e-6, **keys)


@given(st.integers(2, 30), st.integers(1, 6))
def test_in_a_cycle_each_pair_of_racks_is_joined_once(racks, switches):
    matchings = rotors(racks, switches=switches).matchings()
    assert len(matchings) % switches == 0
    joined = np.zeros((racks, racks), dtype=int)
    for matching in matchings:
        assert (matching[matching] == np.arange(racks)).all()
        joined[np.arange(racks), matching] += 1
    off_diagonal = joined[~np.eye(racks, dtype=bool)]
    assert (off_diagonal == 1).all()


def test_the_quota_is_a_hosts_part_of_a_slots_light():
    assert rotors().quota == 180
    assert rotors(hosts=6).quota == 30


def interval_of(run: SlottedRotors, a: int, b: int) -> int:
    return next(k for k, matching in enumerate(run.matchings()) if matching[a] == b)


def test_a_direct_transfer_waits_for_its_matching():
    direct = rotors(indirect=False)
    (time_s,) = RotorRun(direct, [0], [5], [1000], [0.0]).times_s()
    begin_s = interval_of(direct, 0, 5) * direct.interval_s
    assert time_s == pytest.approx(begin_s + direct.way_s)


def test_what_exceeds_a_quota_waits_for_another_cycle():
    direct = rotors(indirect=False)
    size = 1436 * (direct.quota + 1)
    (time_s,) = RotorRun(direct, [0], [5], [size], [0.0]).times_s()
    cycle_s = len(direct.matchings()) * direct.interval_s
    begin_s = interval_of(direct, 0, 5) * direct.interval_s
    assert time_s == pytest.approx(begin_s + cycle_s + direct.way_s)


def test_a_host_in_between_makes_a_long_transfer_faster():
    size = 1436 * 5000
    times = [
        RotorRun(rotors(indirect=indirect), [0], [5], [size], [0.0]).times_s()[0]
        for indirect in (False, True)
    ]
    assert times[1] < times[0] / 2
    # A host sends no faster than its light.
    assert times[1] > 5000 * rotors().packet_s / 2


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 11),
            st.integers(0, 11),
            st.integers(1, 10**6),
            st.floats(0, 0.01),
        ).filter(lambda transfer: transfer[0] // 3 != transfer[1] // 3),
        min_size=1,
        max_size=12,
    )
)
def test_all_packets_arrive_and_none_before_it_can(transfers):
    run = rotors(racks=4, hosts=3)
    sources, destinations, sizes, starts = zip(*transfers, strict=True)
    times = RotorRun(run, sources, destinations, sizes, starts).times_s()
    assert np.isfinite(times).all()
    assert (times >= run.way_s * (1 - 1e-9)).all()


@given(
    st.dictionaries(st.integers(), st.integers(0, 100), max_size=8), st.integers(0, 300)
)
def test_fair_parts_are_whole_and_fill_the_capacity(wants, capacity):
    given_ = fair(wants, capacity)
    assert sum(given_.values()) == min(capacity, sum(wants.values()))
    assert all(0 <= given_[key] <= want for key, want in wants.items())


def test_parts_get_the_remainder_from_the_first_on():
    assert spread(80, [26] * 6) == [14, 14, 13, 13, 13, 13]


def test_a_transfer_within_a_rack_is_refused():
    with pytest.raises(ValueError, match="transfer 0 stays in its rack"):
        RotorRun(rotors(hosts=3), [0], [2], [1], [0.0])


def test_a_late_start_changes_nothing_but_the_phase():
    direct = rotors(indirect=False)
    cycle_s = len(direct.matchings()) * direct.interval_s
    early, late = (
        RotorRun(direct, [0], [5], [10**6], [start]).times_s()[0]
        for start in (0.0, 1e4 * cycle_s)
    )
    assert late == pytest.approx(early, abs=1.01 * direct.interval_s)
