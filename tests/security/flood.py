"""Ten thousand connections that never authenticate: `python flood.py PORT...`, then says `done`."""

import socket
import sys

CONNECTIONS = 10_000
OPEN_AT_ONCE = 500
# A third says nothing, a third talks nonsense, a third begins as ZeroMQ does.
WORDS = (b"", b"GET / HTTP/1.1\r\n", b"\xff" + bytes(8) + b"\x7f\x03")


def flood(ports: list[int]) -> None:
    for start in range(0, CONNECTIONS, OPEN_AT_ONCE):
        held = []
        for number in range(start, start + OPEN_AT_ONCE):
            one = socket.create_connection(("127.0.0.1", ports[number % len(ports)]), 20)
            one.sendall(WORDS[number % len(WORDS)])
            held.append(one)
        for one in held:
            one.close()


if __name__ == "__main__":
    flood([int(port) for port in sys.argv[1:]])
    print("done", flush=True)
