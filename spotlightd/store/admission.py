"""Who may come in, as rows: tokens, the keys that they let in, and what a zone's GPUs cost."""

import sqlite3
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from spotlightd.store.rows import PeerRow, TokenRow
from spotlightd.store.writer import Writer


class AdmissionStore:
    """The part of the store that enrolment, revocation and prices use."""

    def __init__(self, reader: sqlite3.Connection, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer

    def add_token(self, token_id: str, row: TokenRow) -> "Future[None]":
        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.execute(
                "INSERT INTO token VALUES (?,?,?,?,?)",
                (token_id, row.key, row.uses_left, row.expires_at, row.pool),
            )

        return self._writer.submit(statement)

    def token(self, token_id: str) -> TokenRow | None:
        row = self._reader.execute(
            "SELECT key, uses_left, expires_at, pool FROM token WHERE id = ?", (token_id,)
        ).fetchone()
        return TokenRow(*row) if row else None

    def enrol(self, token_id: str, peer: PeerRow) -> "Future[bool]":
        """Use a token up by one and allow a key, in one transaction; False: no use was left."""

        def statement(connection: sqlite3.Connection, _: list[str]) -> bool:
            used = connection.execute(
                "UPDATE token SET uses_left = uses_left - 1 WHERE id = ? AND uses_left > 0",
                (token_id,),
            )
            if not used.rowcount:
                return False
            connection.execute(
                "INSERT INTO peer (public_key, agent_id, name, revoked, pool, expires_at) "
                "VALUES (?,?,?,0,?,?) ON CONFLICT (public_key) DO UPDATE SET "
                "pool = excluded.pool, expires_at = excluded.expires_at",
                (peer.public_key, peer.agent_id, peer.name, peer.pool, peer.expires_at),
            )
            return True

        return self._writer.submit(statement)

    def peers(self) -> list[PeerRow]:
        rows = self._reader.execute(
            "SELECT public_key, agent_id, name, revoked, pool, expires_at FROM peer"
        )
        return [PeerRow(key, i, name, bool(gone), *rest) for key, i, name, gone, *rest in rows]

    def revoke(self, public_key: str) -> "Future[None]":
        """Refuse a key from now on, for good."""
        return self._each("UPDATE peer SET revoked = 1 WHERE public_key = ?", [(public_key,)])

    def renew(self, expiries: Mapping[str, float]) -> "Future[None]":
        """Set until when keys are valid, in seconds since 1970."""
        rows = [(expires_at, key) for key, expires_at in expiries.items()]
        return self._each("UPDATE peer SET expires_at = ? WHERE public_key = ?", rows)

    def set_prices(self, pool: str, prices: Mapping[str, float]) -> "Future[None]":
        """Replace a pool's prices of a spot GPU-hour, by zone."""

        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.execute("DELETE FROM price WHERE pool = ?", (pool,))
            connection.executemany(
                "INSERT INTO price VALUES (?,?,?)", [(pool, *row) for row in prices.items()]
            )

        return self._writer.submit(statement)

    def prices(self) -> dict[tuple[str, str], float]:
        """Return the price of a spot GPU-hour by (pool, zone)."""
        rows = self._reader.execute("SELECT pool, zone, price FROM price")
        return {(pool, zone): price for pool, zone, price in rows}

    def carry_over(self, earlier: sqlite3.Connection) -> "Future[None]":
        """Let in whom an earlier run let in, and keep out whom it shut out.

        Its tokens and prices hold as well, where this run knows nothing newer.
        """
        peers = earlier.execute(
            "SELECT public_key, agent_id, name, revoked, pool, expires_at FROM peer"
        ).fetchall()
        tokens = earlier.execute(
            "SELECT id, key, uses_left, expires_at, pool FROM token"
        ).fetchall()
        prices = earlier.execute("SELECT pool, zone, price FROM price").fetchall()

        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.executemany(
                "INSERT OR IGNORE INTO peer "
                "(public_key, agent_id, name, revoked, pool, expires_at) VALUES (?,?,?,?,?,?)",
                peers,
            )
            connection.executemany(
                "UPDATE peer SET revoked = MAX(revoked, ?), expires_at = MAX(expires_at, ?) "
                "WHERE public_key = ?",
                [(revoked, expires_at, key) for key, _, _, revoked, _, expires_at in peers],
            )
            connection.executemany("INSERT OR IGNORE INTO token VALUES (?,?,?,?,?)", tokens)
            connection.executemany(
                "UPDATE token SET uses_left = MIN(uses_left, ?) WHERE id = ?",
                [(row[2], row[0]) for row in tokens],
            )
            connection.executemany("INSERT OR IGNORE INTO price VALUES (?,?,?)", prices)

        return self._writer.submit(statement)

    def _each(self, sql: str, rows: Iterable[tuple[object, ...]]) -> "Future[None]":
        def statement(connection: sqlite3.Connection, _: list[str]) -> None:
            connection.executemany(sql, rows)

        return self._writer.submit(statement)
