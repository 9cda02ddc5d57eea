"""One end of a TCP flow, as a program: `flow.py recv PORT`, or `flow.py send ADDRESS PORT [DSCP]`. Until killed."""

from __future__ import annotations

import socket
import sys
import time


def receive(port: int) -> None:
    with socket.create_server(("", port)) as listener:
        connection, _ = listener.accept()
        while connection.recv(1 << 20):
            pass


def send(address: str, port: int, dscp: int) -> None:
    while True:
        flow = socket.socket()
        flow.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        # As collectives do: what queues in the socket cannot be overtaken.
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 << 10)
        try:
            flow.connect((address, port))
            break
        except ConnectionRefusedError:
            flow.close()
            time.sleep(0.02)
    data = bytes(256 << 10)
    while True:
        flow.sendall(data)


if __name__ == "__main__":
    if sys.argv[1] == "recv":
        receive(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0)
