"""Drawings of chains."""

from xml.etree import ElementTree as ET

from doubledecker.stages import Bulkhead, Chain, Constant, Fifo, Retry, Router, Simulated, Timeout

CHAIN = (
    Retry(3)
    | Router({"slow": Chain() | Timeout(30.0)})
    | Bulkhead(workers=32, queue=Fifo(100))
    | Timeout(2.0, name="quick")
)


def test_a_chain_is_drawn_as_text_with_what_is_not_default():
    assert CHAIN.diagram().splitlines() == [
        "event",
        "▼ retry         attempts=3",
        "▼ router",
        "  ├ slow",
        "    ▼ timeout   limit_s=30.0",
        "  ├ otherwise",
        "▼ bulkhead      workers=32, queue=Fifo(size_max=100)",
        "▼ quick         limit_s=2.0",
        "● the function",
    ]


def test_a_chain_that_ends_in_a_dependency_calls_no_function():
    assert (Retry(3) | Simulated(Constant(1.0))).diagram().splitlines()[-1].startswith("● simulated")


def test_a_chain_is_drawn_as_svg():
    drawing = ET.fromstring(CHAIN.diagram_svg())
    words = "".join(drawing.itertext())

    assert len(drawing.findall("{http://www.w3.org/2000/svg}rect")) == 6
    assert "bulkhead" in words
