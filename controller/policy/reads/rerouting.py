"""What a TCP flow loses when it is moved to another path (MinCOF, section III-D, Fig. 3 and Eq. 2 to 4).

Lengths of time D are in round trips, windows W in segments, capacities C in segments. A flow on a path with W has a
window that swings between W / 2 and W, one segment a round trip; moved, it starts from nothing at worst.

The equations are the paper's as printed. Their full teeth, W^2 / 4, are twice the area of the triangle that Fig. 3
shows, while the part of a tooth at the end, (D mod W/2)^2 / 2, is that area; so what a move gains comes out a little
high for many short teeth, on the old and on the new path alike.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tcp:
    """What the estimate assumes of the flows: the round trip of an idle network, and the paper's MTU."""

    rtt_seconds: float = 350e-6
    mtu_bytes: int = 1500

    def window(self, rate_bps: float) -> float:
        """W: Cwnd = BDP / MTU, in segments."""
        return rate_bps * self.rtt_seconds / 8 / self.mtu_bytes

    def round_trips(self, seconds: float) -> float:
        return seconds / self.rtt_seconds

    def bits(self, segments: float) -> float:
        return segments * self.mtu_bytes * 8


def capacity_staying(d: float, w: float) -> float:
    """Eq. 2: C_O, what a flow moves in D on a path with the window W_O."""
    teeth, rest = divmod(d, w / 2)
    return d * w / 2 + teeth * w**2 / 4 + rest**2 / 2


def capacity_moved(d: float, w: float) -> float:
    """Eq. 3 and 4: C_N, what a flow moves in D from its move to a path with the window W_N on.

    Where D is over before the window has reached W_N / 2 (D_h < 0), the paper's sum does not apply: the flow has
    moved the triangle D^2 / 2 then.
    """
    d_h = d - w / 2
    if d_h < 0:
        return d**2 / 2
    teeth, rest = divmod(d_h, w / 2)
    return w**2 / 4 + w / 2 * d_h + teeth * w**2 / 4 + rest**2 / 2


def gain(d: float, w_old: float, w_new: float) -> float:
    """C_N - C_O: what moving a flow gains in D, in segments; below 0 if it costs more than it brings."""
    return capacity_moved(d, w_new) - (capacity_staying(d, w_old) if w_old > 0 else 0.0)


def loss(d: float, w_new: float) -> float:
    """What the flow would have moved more in D, had it been on the new path all the time, in segments."""
    return max(capacity_staying(d, w_new) - capacity_moved(d, w_new), 0.0)
