"""Which addresses may be called: range by range, and in whatever other address one stands."""

import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.model.dial_guard import _CLOSED, _NOT_PUBLIC, Address, DialGuard

PUBLIC = DialGuard()
PRIVATE = DialGuard(is_private_allowed=True)
EVERYTHING = DialGuard.parse("0.0.0.0/0,::/0,hooks.internal", is_private_allowed=True)
METADATA = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"]
METADATA += ["fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fe80::a9fe:a9fe"]


def why_not(address: str, guard: DialGuard = PUBLIC, host: str = "") -> str:
    return guard.why_not(ipaddress.ip_address(address), host=host)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:200::1",
        "2003::1",
        "2a00::1",
    ],
)
def test_a_public_address_may_be_called(address: str):
    assert why_not(address) == ""


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0", "this host"),
        ("0.1.2.3", "this host"),
        ("10.0.0.1", "private"),
        ("100.64.0.1", "shared by a carrier's customers"),
        ("100.127.255.255", "shared by a carrier's customers"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("169.254.169.254", "link-local, metadata of clouds"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.0.0.8", "protocol assignments"),
        ("192.0.2.1", "documentation"),
        ("192.88.99.1", "6to4 relays"),
        ("192.168.1.1", "private"),
        ("198.18.0.1", "benchmarking"),
        ("198.19.255.255", "benchmarking"),
        ("198.51.100.1", "documentation"),
        ("203.0.113.1", "documentation"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "broadcast"),
        ("::", "this host"),
        ("::1", "loopback"),
        ("::8.8.8.8", "IPv4-compatible"),
        ("::ffff:8.8.8.8", "IPv4-mapped"),
        ("::ffff:127.0.0.1", "127.0.0.1 inside: loopback"),
        ("::ffff:0:8.8.8.8", "IPv4-translated"),
        ("64:ff9b::8.8.8.8", "NAT64"),
        ("64:ff9b::10.0.0.1", "10.0.0.1 inside: private"),
        ("64:ff9b:1::8.8.8.8", "NAT64 of a local network"),
        ("100::1", "discard"),
        ("100:0:0:1::1", "dummy"),
        ("2001:0:0808:0808::f7f7:f7f7", "Teredo"),
        ("2001:2::1", "benchmarking"),
        ("2001:10::1", "ORCHID"),
        ("2001:2f::1", "ORCHID"),
        ("2001:1ff::1", "protocol assignments"),
        ("2001:db8::1", "documentation"),
        ("2002:808:808::1", "6to4"),
        ("2002:7f00:1::1", "127.0.0.1 inside: loopback"),
        ("3fff::1", "documentation"),
        ("4000::1", "reserved"),
        ("5f00::1", "segment routing"),
        ("fc00::1", "unique local"),
        ("fdff::1", "unique local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "site-local"),
        ("ff02::1", "multicast"),
        ("2a00::5efe:10.0.0.1", "10.0.0.1 inside: private"),
        ("2a00::200:5efe:127.0.0.1", "127.0.0.1 inside: loopback"),
    ],
)
def test_any_other_address_is_refused_and_the_operator_learns_why(address: str, why: str):
    assert why_not(address) == why


def test_both_ends_of_each_listed_range_are_refused():
    ends = [end for each in _CLOSED + _NOT_PUBLIC for end in (each.network[0], each.network[-1])]

    assert [str(end) for end in ends if not PUBLIC.why_not(end)] == []


def test_the_page_on_security_has_each_range_and_what_opens_it():
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    opened = {False: "`callback_allow`", True: "`private_callbacks`, `callback_allow`"}

    listed = [(str(each.network), each.name, "nothing") for each in _CLOSED]
    listed += [(str(each.network), each.name, opened[each.is_private]) for each in _NOT_PUBLIC]
    assert rows == listed


def test_private_callbacks_open_loopback_and_private_networks_and_nothing_else():
    opened = ["10.0.0.1", "100.64.0.1", "127.0.0.1", "172.16.0.1", "192.168.1.1", "::1", "fd12::1", "8.8.8.8"]
    closed = [*METADATA, "0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "::ffff:127.0.0.1"]
    closed += ["64:ff9b::127.0.0.1", "2002:7f00:1::1", "fec0::1"]

    assert [each for each in opened if why_not(each, PRIVATE)] == []
    assert [each for each in closed if not why_not(each, PRIVATE)] == []


def test_what_the_operator_allows_is_opened_by_network_and_by_host():
    guard = DialGuard.parse("10.1.0.0/16, fd12::/16,Hooks.Internal.,64:ff9b::/96", is_private_allowed=False)

    assert why_not("10.1.2.3", guard) == why_not("fd12::1", guard) == ""
    assert why_not("10.2.0.1", guard) == "private"
    assert why_not("10.2.0.1", guard, "hooks.internal") == ""
    assert why_not("10.2.0.1", guard, "other.internal") == "private"
    # A translator is opened for what may be called without it.
    assert why_not("64:ff9b::8.8.8.8", guard) == ""
    assert why_not("64:ff9b::10.2.0.1", guard) == "10.2.0.1 inside: private"


@pytest.mark.parametrize("address", METADATA)
def test_nothing_opens_the_metadata_of_clouds(address: str):
    assert why_not(address, EVERYTHING, "hooks.internal")


@pytest.mark.parametrize("allowed", ["169.254.169.254", "fe80::/64", "fd00:ec2::254/128", "0.0.0.0", "ff02::1"])
def test_an_operator_who_allows_what_is_never_opened_learns_so(allowed: str):
    with pytest.raises(ValueError, match="never called"):
        DialGuard.parse(allowed, is_private_allowed=False)


@pytest.mark.parametrize("allowed", ["10.0.0.1/8", "10.0.0.0/33", "1.2.3", "hooks.*", "http://x/", "::1%lo"])
def test_an_allowlist_of_anything_else_is_refused(allowed: str):
    with pytest.raises(ValueError, match=r".+"):
        DialGuard.parse(allowed, is_private_allowed=False)


def embedded(inner: int, rest: int) -> list[Address]:
    """An address of version 4, in every form of version 6 that leads to it; `rest` fills what is free."""
    rest &= (1 << 32) - 1
    six = ipaddress.IPv6Address
    nat64 = 0x0064_FF9B_0001 << 80
    return [
        six(inner),
        six(0xFFFF << 32 | inner),
        six(0xFFFF << 48 | inner),
        six(0x0064_FF9B << 96 | inner),
        six(nat64 | inner),
        six(nat64 | (inner >> 16) << 64 | (inner & 0xFFFF) << 40),
        six(nat64 | (inner >> 24) << 64 | (inner & 0xFF_FFFF) << 32),
        six(nat64 | (rest & 0xFFFF) << 64 | inner << 24),
        six(0x2002 << 112 | inner << 80 | rest),
        six(0x2001 << 112 | inner << 64 | rest),
        six(0x2001 << 112 | rest << 64 | inner ^ 0xFFFF_FFFF),
        six(0x2A00 << 112 | rest << 64 | 0x5EFE << 32 | inner),
        six(0xFD12 << 112 | rest << 64 | 0x0200_5EFE << 32 | inner),
    ]


closed_4 = st.sampled_from([each.network for each in _CLOSED if each.network.version == 4]).flatmap(
    lambda network: st.integers(int(network[0]), int(network[-1]))
)
not_public_4 = st.sampled_from([each.network for each in _NOT_PUBLIC if each.network.version == 4]).flatmap(
    lambda network: st.integers(int(network[0]), int(network[-1]))
)


@given(not_public_4, st.integers(0))
def test_an_address_that_is_not_public_is_refused_in_whatever_it_stands(inner: int, rest: int):
    assert [str(each) for each in embedded(inner, rest) if not PUBLIC.why_not(each)] == []


# Below 2^24 some forms stand for other addresses: `::1` is one.
@given(closed_4.filter(lambda inner: inner >= 1 << 24), st.integers(0))
def test_no_setting_opens_what_is_never_called_in_whatever_it_stands(inner: int, rest: int):
    assert [str(each) for each in embedded(inner, rest) if not EVERYTHING.why_not(each, host="hooks.internal")] == []


@given(st.integers(0, (1 << 128) - 1))
def test_no_address_of_version_6_outside_of_what_is_given_out_may_be_called(value: int):
    address = ipaddress.IPv6Address(value)

    assert PUBLIC.why_not(address) or address in ipaddress.IPv6Network("2000::/3")
