"""Tables of the run's state. `PRAGMA user_version` counts the migrations that were applied."""

import sqlite3

from spotlightd.errors import VersionSkewError

MIGRATIONS = (
    """
    CREATE TABLE run (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        name TEXT NOT NULL,
        config TEXT NOT NULL,
        sigmas TEXT NOT NULL DEFAULT '[]',
        cycle TEXT NOT NULL DEFAULT '',
        policy_version INTEGER NOT NULL DEFAULT 0,
        epoch INTEGER NOT NULL DEFAULT 0,
        started_at REAL NOT NULL,
        updated_at REAL NOT NULL
    ) STRICT;
    CREATE TABLE request (
        request_id TEXT PRIMARY KEY,
        iteration INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body BLOB NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('queued', 'leased', 'done', 'failed', 'cancelled')),
        fence INTEGER NOT NULL DEFAULT 0,
        agent_id TEXT NOT NULL DEFAULT '',
        progress_step INTEGER NOT NULL DEFAULT 0,
        progress_blob TEXT NOT NULL DEFAULT '',
        gpu_s REAL NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX request_by_iteration ON request (iteration, kind, state);
    CREATE TABLE result (
        request_id TEXT PRIMARY KEY REFERENCES request,
        fence INTEGER NOT NULL,
        scores TEXT NOT NULL,
        text TEXT NOT NULL,
        trajectory TEXT NOT NULL,
        image TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        resumed_from INTEGER NOT NULL,
        time REAL NOT NULL
    ) STRICT;
    CREATE TABLE metric (
        iteration INTEGER NOT NULL,
        name TEXT NOT NULL,
        value REAL NOT NULL,
        PRIMARY KEY (iteration, name)
    ) STRICT;
    CREATE TABLE event (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,
        level TEXT NOT NULL,
        component TEXT NOT NULL,
        text TEXT NOT NULL
    ) STRICT;
    CREATE TABLE token (
        id TEXT PRIMARY KEY,
        key BLOB NOT NULL,
        uses_left INTEGER NOT NULL,
        expires_at REAL NOT NULL,
        pool TEXT NOT NULL
    ) STRICT;
    CREATE TABLE peer (
        public_key TEXT PRIMARY KEY,
        agent_id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        revoked INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE account (
        agent_id TEXT PRIMARY KEY,
        body TEXT NOT NULL
    ) STRICT;
    """,
    # What the control socket and the dashboard ask, answered without reading the whole run: counts
    # are kept by triggers, curves and pages come from indices.
    """
    ALTER TABLE run ADD COLUMN state TEXT NOT NULL DEFAULT 'running'
        CHECK (state IN ('running', 'paused', 'stopped'));
    ALTER TABLE request ADD COLUMN leased_at REAL NOT NULL DEFAULT 0;
    CREATE TABLE tally (
        kind TEXT NOT NULL,
        state TEXT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (kind, state)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO tally SELECT kind, state, COUNT(*) FROM request GROUP BY kind, state;
    INSERT INTO tally SELECT 'result', '', COUNT(*) FROM result;
    CREATE TRIGGER request_added AFTER INSERT ON request BEGIN
        INSERT INTO tally VALUES (NEW.kind, NEW.state, 1)
            ON CONFLICT DO UPDATE SET count = count + 1;
    END;
    CREATE TRIGGER request_moved AFTER UPDATE OF state ON request WHEN OLD.state != NEW.state
    BEGIN
        UPDATE tally SET count = count - 1 WHERE kind = OLD.kind AND state = OLD.state;
        INSERT INTO tally VALUES (NEW.kind, NEW.state, 1)
            ON CONFLICT DO UPDATE SET count = count + 1;
    END;
    CREATE TRIGGER result_added AFTER INSERT ON result BEGIN
        UPDATE tally SET count = count + 1 WHERE kind = 'result';
    END;
    CREATE TRIGGER result_removed AFTER DELETE ON result BEGIN
        UPDATE tally SET count = count - 1 WHERE kind = 'result';
    END;
    CREATE INDEX metric_by_name ON metric (name, iteration, value);
    CREATE INDEX result_by_time ON result (time);
    CREATE TABLE usage (
        time INTEGER NOT NULL,
        agent_id TEXT NOT NULL,
        state TEXT NOT NULL,
        useful REAL NOT NULL,
        wasted REAL NOT NULL,
        loading REAL NOT NULL,
        idle REAL NOT NULL,
        PRIMARY KEY (time, agent_id)
    ) STRICT, WITHOUT ROWID;
    """,
    # Keys of the first schema get their term when the daemon starts.
    """
    ALTER TABLE peer ADD COLUMN pool TEXT NOT NULL DEFAULT 'default';
    ALTER TABLE peer ADD COLUMN expires_at REAL NOT NULL DEFAULT 1e300;
    CREATE TABLE price (
        pool TEXT NOT NULL,
        zone TEXT NOT NULL,
        price REAL NOT NULL,
        PRIMARY KEY (pool, zone)
    ) STRICT;
    """,
)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the database to this release's schema.

    Raises VersionSkewError when a newer release wrote it.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise VersionSkewError(
            f"{path} was written by a newer spotlightd (schema {version}, this one knows "
            f"{len(MIGRATIONS)}): upgrade with pip install -U spotlight-rl"
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
