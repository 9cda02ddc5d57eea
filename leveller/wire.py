"""What agents, the controller and commands say to each other: declared types, checked as they are decoded.

controller -> agent    Ask: tell me how you do, for round `number`
agent -> controller    Report: jobs, and their flows from this host; also unasked, where flows came or went
controller -> agent    Levels: of the flows of report `number`, in its order
agent -> controller    Marked: what of the last levels could not be enforced
command -> controller  Query, answered by Answer
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "LONGEST",
    "VERSION",
    "Answer",
    "Ask",
    "BadMessage",
    "FlowReport",
    "Hello",
    "JobReport",
    "Levels",
    "Marked",
    "Message",
    "Query",
    "Refusal",
    "Report",
    "decode",
    "encode",
]

VERSION = 1
LONGEST = 16 << 20
MOST_FLOWS = 1 << 18

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
Address = Annotated[str, msgspec.Meta(max_length=45, pattern=r"^[0-9a-fA-F:.]+$")]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Link = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class BadMessage(Exception):
    """The other side sent what it must not."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """First of all. `host` is empty from a command."""

    version: int
    host: Annotated[str, msgspec.Meta(max_length=128)] = ""


class FlowReport(msgspec.Struct, frozen=True, array_like=True):
    """A flow that leaves the host, and the links it crosses; an empty path is not known."""

    protocol: Annotated[str, msgspec.Meta(pattern=r"^(tcp|udp)$")]
    source: Address
    source_port: Port
    destination: Address
    destination_port: Port
    path: Annotated[tuple[Link, ...], msgspec.Meta(max_length=64)] = ()


class JobReport(msgspec.Struct, frozen=True):
    """A job as one host sees it.

    completed: iterations since `elapsed` seconds ago; `ideal`: seconds of one alone, None where not measured here, as a
    median of `measured` ones; `rate`: R over the agent's window, where it has one. The rest is as the jobs file says.
    """

    id: Name
    completed: Count = 0
    elapsed: Seconds = 0.0
    ideal: Positive | None = None
    measured: Count = 0
    rate: Seconds | None = None
    weight: Positive = 1.0
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    compute: Seconds | None = None
    communicate: Seconds | None = None
    flows: Annotated[list[FlowReport], msgspec.Meta(max_length=MOST_FLOWS)] = []


class Report(msgspec.Struct, tag="report", frozen=True):
    """All jobs of a host. `round`: the round that asked; 0: nobody did."""

    number: Count
    round: Count
    jobs: Annotated[list[JobReport], msgspec.Meta(max_length=4096)]


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """Asks for a report."""

    round: Count


class Levels(msgspec.Struct, tag="levels", frozen=True):
    """`levels` of the flows of the host's report `number`, job by job in its order, each from 0 to `count` - 1."""

    number: Count
    count: Annotated[int, msgspec.Meta(ge=1, le=64)]
    levels: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=63)]], msgspec.Meta(max_length=MOST_FLOWS)]
    profiling: Annotated[list[Name], msgspec.Meta(max_length=4096)] = []


class Refusal(msgspec.Struct, frozen=True):
    """A flow that is not marked as it was to be."""

    flow: FlowReport
    requested: int
    effective: int | None
    reason: Annotated[str, msgspec.Meta(max_length=500)]


class Marked(msgspec.Struct, tag="marked", frozen=True):
    """How many flows are marked, and which are not as asked (the first of them)."""

    marked: Count
    refused: Count
    some: Annotated[list[Refusal], msgspec.Meta(max_length=32)] = []


class Query(msgspec.Struct, tag="query", frozen=True):
    """A question of a command: "status", or "explain" with a job."""

    subject: Annotated[str, msgspec.Meta(pattern=r"^(status|explain)$")]
    job: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Answer(msgspec.Struct, tag="answer", frozen=True):
    """JSON."""

    body: bytes


Message = Hello | Report | Ask | Levels | Marked | Query | Answer

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Returns the bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Returns the message. BadMessage: it is none, or something in it is out of bounds."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadMessage(f"not a message of version {VERSION}: {error}") from None
