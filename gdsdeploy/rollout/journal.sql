-- The tables of a journal; see journal.py.  Nothing that is in them can be changed.
PRAGMA synchronous = FULL;
BEGIN IMMEDIATE;
CREATE TABLE rollout (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE event (
    rollout INTEGER NOT NULL REFERENCES rollout (key), number INTEGER NOT NULL, time REAL NOT NULL,
    kind TEXT NOT NULL, host TEXT NOT NULL, data TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (rollout, number)
) WITHOUT ROWID;
CREATE INDEX event_of_the_whole ON event (rollout, number) WHERE host = '';
CREATE TRIGGER rollout_stays BEFORE UPDATE ON rollout BEGIN SELECT RAISE(ABORT, 'only appended to'); END;
CREATE TRIGGER rollout_keeps BEFORE DELETE ON rollout BEGIN SELECT RAISE(ABORT, 'only appended to'); END;
CREATE TRIGGER rollout_follows BEFORE INSERT ON rollout
WHEN NEW.id IN (SELECT id FROM rollout) OR NEW.key IN (SELECT key FROM rollout)
BEGIN SELECT RAISE(ABORT, 'a rollout has one beginning'); END;
CREATE TRIGGER event_stays BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'only appended to'); END;
CREATE TRIGGER event_keeps BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'only appended to'); END;
CREATE TRIGGER event_follows BEFORE INSERT ON event
WHEN NEW.number <> 1 + coalesce((SELECT max(number) FROM event WHERE rollout = NEW.rollout), 0)
BEGIN SELECT RAISE(ABORT, 'somebody else has written to it'); END;
PRAGMA application_id = 0x67647372;
PRAGMA user_version = 1;
COMMIT;
