"""How long one sum of gradients should take: latencies, bytes through a node's link, passes over memory. Pure.

N nodes with L ranks each sum n bytes of float32. Inside a node every rank sums its share of all L vectors where they
lie: (L + 1) n bytes pass through memory, where a copy of n passes 2 n. Between nodes each rank exchanges only its
share; the L ranks of a node share its link, which carries both directions at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcrl.config import ConfigError

Exchange = Literal["all_gather", "two_phase"]
Compression = Literal["none", "bf16", "int8", "topk"]

FORMS: tuple[tuple[Exchange, Compression], ...] = (
    ("all_gather", "none"),
    ("two_phase", "none"),
    ("all_gather", "bf16"),
    ("all_gather", "int8"),
    ("all_gather", "topk"),
)
"""Between nodes; of equal ones the first is chosen. Two phases would have to compress twice: they are always exact."""
_ENCODE_S = {"none": 0.0, "bf16": 1 / 9e9, "int8": 1 / 7e9, "topk": 1 / 3e9}
"""Seconds per float32 byte on one core, what is left out kept for the next sum."""
_DECODE_S = {"none": 1 / 9e9, "bf16": 1 / 5e9, "int8": 1 / 5e9, "topk": 1 / 150e9}
"""Seconds per float32 byte on one core, decoded and added."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model knows of a machine. The defaults were seen on a virtual machine with two cores."""

    link_bytes_per_s: float
    """Of one node, in each direction."""
    link_latency_s: float = 50e-6
    """Of a small message between nodes, Python around it."""
    memory_bytes_per_s: float = 12e9
    """Payload copied by all ranks of a node at once."""
    local_latency_s: float = 5e-6
    """Of a barrier inside a node."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One form of the sum."""

    exchange: str
    compression: str
    seconds: float
    link_bytes: float
    """Through a node's link, each direction."""
    chosen: bool
    """By `reduction.exchange: auto`, with this compression."""


def compressed_fraction(compression: Compression, topk_fraction: float = 0.01) -> float:
    """Bytes that cross nodes for each byte of float32."""
    scales = 4 / 256  # int8: one float32 per 256 entries
    return {"none": 1.0, "bf16": 0.5, "int8": 0.25 * (1 + scales), "topk": 2 * topk_fraction}[compression]


def predict(
    nbytes: float, nodes: int, ranks_per_node: int, machine: Machine, topk_fraction: float = 0.01
) -> list[Prediction]:
    """Every form of summing `nbytes` of float32, fastest first; on one node only the one there is.

    Raises ConfigError where a number is not positive.
    """
    if min(nbytes, nodes, ranks_per_node, machine.link_bytes_per_s) <= 0:
        raise ConfigError("parameters, nodes, ranks per node and the link's speed must be above 0")
    inside = _inside_s(nbytes, ranks_per_node, machine)
    if nodes == 1:
        return [Prediction("inside the node", "none", inside, 0.0, True)]
    found = [_flat_ring(nbytes, nodes, ranks_per_node, machine)]
    for exchange, compression in FORMS:
        sent = link_bytes(exchange, nbytes * compressed_fraction(compression, topk_fraction), nodes)
        computed = _kernels_s(exchange, compression, nbytes / ranks_per_node, nodes)
        steps = 1 if exchange == "all_gather" else 2
        seconds = inside + steps * machine.link_latency_s + sent / machine.link_bytes_per_s + computed
        chosen = chosen_form(nodes, compression, topk_fraction) == (exchange, compression)
        found.append(Prediction(exchange, compression, seconds, sent, chosen))
    return sorted(found, key=lambda prediction: prediction.seconds)


def link_bytes(exchange: str, nbytes: float, nodes: int) -> float:
    """Through one node's link, each direction, for `nbytes` (as they travel) summed over `nodes`."""
    if exchange == "all_gather":
        return nbytes * (nodes - 1)
    return 2 * nbytes * (nodes - 1) / nodes


def chosen_form(
    nodes: int, compression: Compression, topk_fraction: float = 0.01
) -> tuple[Exchange, Compression]:
    """What `reduction.exchange: auto` does: the form with the fewest bytes through a link, then the fewest steps.

    Where the exact sum in two phases is cheaper than what was asked for, nothing is compressed.
    """
    forms = [form for form in FORMS if form[1] in ("none", compression)]
    return min(
        forms, key=lambda form: link_bytes(form[0], compressed_fraction(form[1], topk_fraction), nodes)
    )


def _inside_s(nbytes: float, ranks: int, machine: Machine) -> float:
    if ranks == 1:
        return machine.local_latency_s
    return 3 * machine.local_latency_s + (ranks + 1) * nbytes / (2 * machine.memory_bytes_per_s)


def _kernels_s(exchange: str, compression: str, share: float, nodes: int) -> float:
    """Encoding and summing of one rank's `share` bytes; in two phases each node sums only its piece of them."""
    if exchange == "two_phase":
        return share * _DECODE_S[compression]
    return share * (_ENCODE_S[compression] + nodes * _DECODE_S[compression])


def _flat_ring(nbytes: float, nodes: int, ranks: int, machine: Machine) -> Prediction:
    """The usual all-reduce of an MPI library for large vectors, ranks in the order of their nodes."""
    size = nodes * ranks
    sent = 2 * nbytes * (size - 1) / size
    per_byte = max(1 / machine.link_bytes_per_s, ranks / machine.memory_bytes_per_s)
    seconds = 2 * (size - 1) * machine.link_latency_s + sent * per_byte
    return Prediction("flat ring of a library", "none", seconds, sent, False)
