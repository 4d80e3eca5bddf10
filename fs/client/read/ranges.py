"""Who brings a long range that is read in order: one replica, or several at once."""

from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.plan import Followed, Source, plan_stream
from speedwell.fs.client.read.receiver import RangeReceiver, Receiver
from speedwell.fs.client.read.side_by_side import SideBySideReceiver
from speedwell.fs.proto.speedwell_pb2 import Attributes


def open_range(context: ClientContext, attributes: Attributes, offset: int, stop: int) -> Receiver:
    """A receiver for a long range that is read in order: from as many replicas at once as the controller says."""
    return receiver_of(context, attributes, plan_parts(context, attributes, offset, stop), offset, stop)


def plan_parts(context: ClientContext, attributes: Attributes, offset: int, stop: int) -> list[Source] | Followed:
    """Who serves a range; nobody if there is no replica, which is for the receiver to report."""
    candidates = context.near_first(attributes.replicas, attributes.file_id)
    if not candidates or stop <= offset:
        return []
    return plan_stream(context, attributes, candidates, offset, stop - offset)


def receiver_of(context: ClientContext, attributes: Attributes, plan: list[Source] | Followed, offset: int,
                stop: int) -> Receiver:
    """A receiver for a range that `plan_parts` has planned."""
    if isinstance(plan, Followed) or len(plan) > 1:
        return SideBySideReceiver(context, attributes, plan, offset, stop)
    return RangeReceiver(context, attributes, offset, stop, steer=True, source=plan[0] if plan else None)
